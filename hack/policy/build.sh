#!/usr/bin/env bash
# build.sh: builds what tests of network policies run into bin/policy: cyclonus (hack/policy/cyclonus, which runs its cases),
# worker, its program that probes inside pods, and agnhost, which that starts for each probe: Kubernetes' own with only the
# commands that these tests use (hack/policy/agnhost). The whole program takes 20 ms of CPU to start, and a case starts it 324
# times. clusternetworkpolicy.test are the tests of sigs.k8s.io/network-policy-api (hack/policy/clusternetworkpolicy), and
# clusternetworkpolicies.yaml is its API.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

go=${GO:-go}
RECIPE=2 # raise it when something below or in agnhost changes
out=$PWD/bin/policy
mkdir -p "$out"
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-trimpath -buildvcs=false -tags=netgo,osusergo,grpcnotrace'
# Go finds out itself whether there is something to do.
(
  cd hack/policy/cyclonus
  "$go" build -ldflags '-s -w' -o "$out/cyclonus" .
  "$go" build -ldflags '-s -w' -o "$out/worker" github.com/mattfenwick/cyclonus/cmd/worker
)

version=$(cd cluster && "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
tests=$(cd cluster && "$go" list -m -f '{{.Version}}' sigs.k8s.io/network-policy-api)
stamp=$out/.stamp-$version-$tests-$RECIPE
[[ ! -e $stamp ]] || exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Modules that the cluster does not need, with the cluster's versions of the others.
cp cluster/go.mod cluster/go.sum hack/policy/agnhost/*.go "$tmp"
sed -i "s|=> \.\./|=> $PWD/|" "$tmp/go.mod" # modules of this repository
cd "$tmp"
"$go" mod edit -module agnhost
GOFLAGS+=' -mod=mod'
"$go" build -ldflags '-s -w' -o "$out/agnhost" .
mkdir tiers
cp "$OLDPWD"/hack/policy/clusternetworkpolicy/*.go tiers
"$go" test -c -vet=off -ldflags '-s -w' -o "$out/clusternetworkpolicy.test" ./tiers
module=$("$go" list -m -f '{{.Dir}}' sigs.k8s.io/network-policy-api)
install -m 0644 "$module/config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml" "$out/clusternetworkpolicies.yaml"
rm -f "$out"/.stamp-*
touch "$stamp"
