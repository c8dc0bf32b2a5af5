#!/usr/bin/env bash
# build.sh: builds what tests of network policies run into bin/policy: cyclonus (hack/policy/cyclonus, which runs its cases),
# worker, its program that probes inside pods, and agnhost, which that starts for each probe: Kubernetes' own with only the
# commands that these tests use (hack/policy/agnhost). The whole program takes 20 ms of CPU to start, and a case starts it 324
# times. clusternetworkpolicy.test are the tests of sigs.k8s.io/network-policy-api (hack/policy/clusternetworkpolicy), and
# clusternetworkpolicies.yaml is its API.
set -euo pipefail
# shellcheck source=hack/gobuild.sh
source "$(dirname "${BASH_SOURCE[0]}")/../gobuild.sh"

RECIPE=2 # raise it when something below or in agnhost changes
out=$repo/bin/policy
mkdir -p "$out"
# Go finds out itself whether there is something to do.
(
  cd "$repo/hack/policy/cyclonus"
  "$go" build -ldflags '-s -w' -o "$out/cyclonus" .
  "$go" build -ldflags '-s -w' -o "$out/worker" github.com/mattfenwick/cyclonus/cmd/worker
)

kubernetes=$(cluster_version k8s.io/kubernetes)
api=$(cluster_version sigs.k8s.io/network-policy-api)
once stamp "$kubernetes-$api-$RECIPE"
enter_module agnhost "$repo"/hack/policy/agnhost/*.go
"$go" build -ldflags '-s -w' -o "$out/agnhost" .
mkdir tiers
cp "$repo"/hack/policy/clusternetworkpolicy/*.go tiers
"$go" test -c -vet=off -ldflags '-s -w' -o "$out/clusternetworkpolicy.test" ./tiers
module=$("$go" list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
install -m 0644 "$module/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml" "$out/clusternetworkpolicies.yaml"
built stamp
