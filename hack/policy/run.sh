#!/usr/bin/env bash
# run.sh [CASES [FOCUS [TESTS]]]: runs other people's tests of network policies on the cluster of hack/conformance/cluster.sh:
# the cases of cyclonus that CASES matches (a regular expression of "NUMBER NAME [TAGS]"; all), the specs of Kubernetes' suite
# that FOCUS matches (those of NetworkPolicies), and the tests of ClusterNetworkPolicy that TESTS matches (all). "-" leaves one
# of them out. Without arguments it writes what passed into docs/network-policy-conformance.md.
#   PROCS, LIMIT  see hack/conformance/suite.sh
#   KEEP=DIR      where logs and reports stay (out/policy)
# bin/ has to have what build.sh and hack/conformance/build.sh build, too, and the tool kubectl.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "${self%/*}/../.."
page=docs/network-policy-conformance.md
keep=${KEEP:-out/policy}
# shellcheck source=hack/conformance/cluster.sh
source hack/conformance/cluster.sh
# shellcheck source=hack/conformance/suite.sh
source hack/conformance/suite.sh
enclose "$@"
cases=${1:-} focus=${2:-'\[sig-network\] Netpol'} tests=${3:-.}

start policy
code=0
if [[ $cases != - ]]; then
  began=$SECONDS
  "$bin/policy/cyclonus" -results "$keep/cases" -only "$cases" >"$keep/cyclonus.log" 2>&1 || { code=1; tail -n 5 "$keep/cyclonus.log" >&2; }
  echo "policy: $(grep -c ^passed "$keep/cases") cases passed, $(grep -c ^failed "$keep/cases") failed in $((SECONDS - began)) s"
  sed -n 's/^failed\t/FAILED /p' "$keep/cases"
  ! grep -q ^failed "$keep/cases" || code=1
fi
if [[ $focus != - ]]; then
  # The specs of this feature open SCTP sockets, which kernels need not have.
  suite "$focus" 'Feature:SCTPConnectivity' || code=$?
  [[ ! -s $keep/failed ]] || code=1
  jq -r '.[].SpecReports[] | (.ContainerHierarchyTexts // []) + [.LeafNodeText] | join(" ") | select(test("Netpol.*Feature:SCTPConnectivity"))' \
    "$keep/report.json" >"$keep/left"
fi
if [[ $tests != - ]]; then
  began=$SECONDS
  "$bin/tools/kubectl" apply --server-side -f "$bin/policy/clusternetworkpolicies.yaml" >"$keep/tiers.log"
  "$bin/tools/kubectl" wait --for condition=Established crd/clusternetworkpolicies.policy.networking.k8s.io >>"$keep/tiers.log"
  "$bin/policy/clusternetworkpolicy.test" -test.v -test.run "^TestConformance$/$tests" -test.timeout 1h >>"$keep/tiers.log" 2>&1 || code=1
  # Of the tests within a test, only the innermost.
  sed -En 's/^ *--- (PASS|FAIL|SKIP): TestConformance\/([^ ]+) .*/\1\t\2/p' "$keep/tiers.log" | sort -u |
    awk -F'\t' '{state[$2] = $1; parent = $2; sub("/[^/]*$", "", parent); if (parent != $2) within[parent] = 1}
      END {for (name in state) if (!within[name]) print state[name] "\t" name}' | sort -k2 >"$keep/tiers"
  grep -q '^PASS' "$keep/tiers" || { tail -n 20 "$keep/tiers.log" >&2; exit 1; }
  echo "policy: $(grep -c ^PASS "$keep/tiers") tests of ClusterNetworkPolicy passed," \
    "$(grep -c ^FAIL "$keep/tiers") failed in $((SECONDS - began)) s"
  sed -n 's/^FAIL\t/FAILED /p' "$keep/tiers"
fi
if ((!$#)); then
  "$bin/policy/cyclonus" -list >"$keep/list"
  hack/policy/page.sh "$page" "$keep/cases" "$keep/list" "$keep/passed" "$keep/failed" "$keep/left" "$keep/tiers"
fi
exit "$code"
