#!/usr/bin/env bash
# page.sh PAGE LIST PASSED FAILED: writes the page of passed specs. The list below the heading LIST gets those of PASSED and
# loses those of FAILED; the others stay as they are.
set -euo pipefail
page=$1 list=$2 passed=$3 failed=$4
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=hack/conformance/suite.sh
source hack/conformance/suite.sh
tmp=$(mktemp "$page.XXXXXX")
trap 'rm -f "$tmp"' EXIT
{
  cat <<'C'
# Kubernetes' conformance suite

`make test-conformance` builds upstream's own suite, e2e.test of Kubernetes 1.36.3, from the Go module proxy, and runs it on the
cluster of `coracle up` with its default network, on one node, offline, without retries. With `NODES=2` it runs on the two nodes
of `coracle up --nodes 2`; the second has network and mount namespaces of its own. The images are stand-ins made from the
suite's own programs and this machine's. The specs below have passed; a run without `FOCUS` repeats those of its number of
nodes, and fails if one of them does. `make test-conformance FOCUS='\[sig-network\] Services'` runs others, adds those that pass
and removes those that fail. hack/conformance writes this page.

| | |
| --- | --- |
| on one node | all specs marked Conformance that one node can run |
| on two nodes | the two specs marked Conformance that need them, the others of [sig-network], DaemonSets and preemption that are marked so, and some about traffic |
| fail on two nodes | some of the specs "Networking Granular Checks: Services", and others with clients on the network of the first node: it has a second address, and packets from that to pods of the other node are dropped there; "service endpoints using hostNetwork", because both nodes have the host name of the machine |
| not run on two nodes yet | most specs of scheduling, and those of [sig-network] that are not marked Conformance and not listed below |
| left out | specs marked Disruptive, Flaky or Slow; on two nodes also those about SCTP, and those that need three nodes or zones |
C
  for heading in 'Passed on one node' 'Passed on two nodes'; do
    had=$(specs "$page" "$heading")
    [[ $heading != "$list" ]] || had=$(sort -u - "$passed" <<<"$had" | comm -23 - <(sort -u "$failed") | sed '/^$/d')
    printf '\n## %s: %d\n\n' "$heading" "$(grep -c . <<<"$had")"
    sed '/./s/^/- /' <<<"$had"
  done
} >"$tmp"
chmod 0644 "$tmp"
mv "$tmp" "$page"
