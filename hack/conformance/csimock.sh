#!/usr/bin/env bash
# csimock.sh: builds hack/conformance/csimock, with the modules of cluster/, into bin/conformance.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

go=${GO:-go}
RECIPE=1 # raise it when something below or in csimock changes
out=$PWD/bin/conformance
version=$(cd cluster && GOWORK=off "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
stamp=$out/.csimock-$version-$RECIPE
[[ ! -e $stamp ]] || exit 0
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp cluster/go.mod cluster/go.sum hack/conformance/csimock/main.go "$tmp"
sed -i "s|=> \.\./|=> $PWD/|" "$tmp/go.mod" # modules of this repository
cd "$tmp"
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-mod=mod -trimpath -buildvcs=false -tags=netgo,osusergo,grpcnotrace'
"$go" mod edit -module csimock
"$go" build -ldflags '-s -w' -o "$out/csimock" .
rm -f "$out"/.csimock-*
touch "$stamp"
