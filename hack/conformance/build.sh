#!/usr/bin/env bash
# build.sh: builds Kubernetes' conformance suite and the programs of its images into bin/conformance, from the module that
# cluster/ is made of: e2e.test, ginkgo, agnhost, and for the specs of aggregation sample-apiserver and etcd.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../cluster"

go=${GO:-go}
RECIPE=2 # raise it when something below changes
out=$PWD/../bin/conformance
version=$(GOWORK=off "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
stamp=$out/.stamp-$version-$RECIPE
[[ ! -e $stamp ]] || exit 0
mkdir -p "$out"
echo "conformance: building Kubernetes' suite $version" >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# The suite needs modules that the cluster does not: a module of its own, with the cluster's versions of the others. The
# tags are the cluster's, so that what both have is compiled once.
cp go.mod go.sum "$tmp"
sed -i "s|=> \.\./|=> ${PWD%/*}/|" "$tmp/go.mod" # modules of this repository
cd "$tmp"
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -trimpath -buildvcs=false -tags=netgo,osusergo,grpcnotrace'
"$go" mod edit -module conformance -require "k8s.io/sample-apiserver@v0.${version#v1.}"
flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
"$go" build -ldflags "$flags" -o "$out/" github.com/onsi/ginkgo/v2/ginkgo k8s.io/kubernetes/test/images/agnhost \
  k8s.io/sample-apiserver
"$go" build -ldflags "$flags" -o "$out/etcd" go.etcd.io/etcd/server/v3
"$go" test -c -ldflags "$flags" -o "$out/e2e.test" k8s.io/kubernetes/test/e2e
module=$("$go" list -m -f '{{.Dir}}' k8s.io/kubernetes)
install -m 0644 "$module"/test/images/agnhost/porter/localhost.{crt,key} "$out/"
rm -f "$out"/.stamp-*
touch "$stamp"
