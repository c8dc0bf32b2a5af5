#!/usr/bin/env bash
# run.sh [FOCUS]: runs Kubernetes' conformance suite on the cluster of cluster.sh and writes what passed into
# docs/conformance.md. FOCUS is a regular expression of specs' names. Without one, the specs of that page run, and each that
# fails is an error.
#   PROCS, LIMIT  see suite.sh
#   KEEP=DIR      where logs and reports stay (out/conformance)
# bin/ has to have what build.sh builds, too, and the tool kubectl.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "${self%/*}/../.."
page=docs/conformance.md
keep=${KEEP:-out/conformance}
# shellcheck source=hack/conformance/cluster.sh
source hack/conformance/cluster.sh
# shellcheck source=hack/conformance/suite.sh
source hack/conformance/suite.sh
enclose "$@"

expected=
focus=${1:-}
if [[ -z $focus ]]; then
  expected=$(specs "$page")
  [[ -n $expected ]] || { echo "conformance: $page lists no specs; name some with FOCUS" >&2; exit 1; }
  focus="($(quoted <<<"$expected"))\$"
fi
start conformance
code=0
# Left out is what one node cannot do, and what ends or starves other specs.
suite "$focus" 'at least two untainted nodes|\[Disruptive\]|\[Flaky\]|\[Slow\]' || code=$?
hack/conformance/page.sh "$page" "$keep/passed" "$keep/failed"
if [[ -n $expected ]]; then
  missing=$(comm -23 <(sort -u <<<"$expected") <(sort -u "$keep/passed" "$keep/failed"))
  [[ -z $missing ]] || { echo "NOT RUN ${missing//$'\n'/$'\n'NOT RUN }"; code=1; }
fi
[[ ! -s $keep/failed ]] || code=1
exit "$code"
