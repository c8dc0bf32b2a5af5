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
| on two nodes | the two specs marked Conformance that need them, the others of [sig-network], DaemonSets and preemption; Services have both families |
| fail on two nodes | specs that need what is missing here: the Internet, and images with CoreDNS, iperf and conntrack ("configurable pod resolv.conf", "run iperf2", "TCP CLOSE_WAIT timeout"); those of kube-proxy's ports and metrics, and of the logs of a node, which the kubelet does not serve; "ExternalIP when the external IP is not assigned to a node", which needs `--allow-external-ips` |
| not run on two nodes yet | most specs of scheduling |
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
