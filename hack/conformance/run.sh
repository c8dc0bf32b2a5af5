#!/usr/bin/env bash
# run.sh [FOCUS]: runs Kubernetes' conformance suite on the cluster of cluster.sh and writes what passed into
# docs/conformance.md. FOCUS is a regular expression of specs' names. Without one, the specs of that page's list for this number
# of nodes run, and each that fails is an error.
#   NODES=1       how many nodes the cluster has: 1 or 2
#   PROCS, LIMIT  see suite.sh
#   KEEP=DIR      where logs and reports stay (out/conformance)
# bin/ has to have what build.sh builds, too, and the tool kubectl.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "${self%/*}/../.."
page=docs/conformance.md
keep=${KEEP:-out/conformance}
# Left out is what ends or starves other specs, what needs SCTP, which kernels need not have, and what one node cannot do.
skip='\[Disruptive\]|\[Flaky\]|\[Slow\]|SCTPConnectivity'
case ${NODES:-1} in
  1) list='Passed on one node' skip+='|at least two untainted nodes|should rollback without unnecessary restarts' ;;
  2) list='Passed on two nodes' ;;
  *) echo "conformance: NODES=$NODES is neither 1 nor 2" >&2; exit 1 ;;
esac
# shellcheck source=hack/conformance/cluster.sh
source hack/conformance/cluster.sh
# shellcheck source=hack/conformance/suite.sh
source hack/conformance/suite.sh
enclose "$@"

expected=
focus=${1:-}
if [[ -z $focus ]]; then
  expected=$(specs "$page" "$list")
  [[ -n $expected ]] || { echo "conformance: $page has no specs below '$list'; name some with FOCUS" >&2; exit 1; }
  focus="($(quoted <<<"$expected"))\$"
fi
start conformance "${NODES:-1}"
code=0
suite "$focus" "$skip" || code=$?
hack/conformance/page.sh "$page" "$list" "$keep/passed" "$keep/failed"
if [[ -n $expected ]]; then
  missing=$(comm -23 <(sort -u <<<"$expected") <(sort -u "$keep/passed" "$keep/failed"))
  [[ -z $missing ]] || { echo "NOT RUN ${missing//$'\n'/$'\n'NOT RUN }"; code=1; }
fi
[[ ! -s $keep/failed ]] || code=1
exit "$code"
