#!/usr/bin/env bash
# kubelet.sh VERSION: builds upstream's kubelet of another release than cluster/ has, v1.34.4 for example, into
# bin/peers/bin/kubelet-VERSION, through the Go module proxy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

go=${GO:-go}
version=$1
if [[ ! $version =~ ^v1\.[0-9]+\.[0-9]+$ ]]; then
  echo "peers: $version is no release of Kubernetes; v1.34.4 is one" >&2
  exit 2
fi
program=$PWD/bin/peers/bin/kubelet-$version
[[ ! -e $program ]] || exit 0
mkdir -p "${program%/*}"
export CGO_ENABLED=0 GOWORK=off GOFLAGS= # not those of our own programs: a kubelet needs all of gRPC
echo "peers: building the kubelet $version" >&2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
mod=$("$go" mod download -json "k8s.io/kubernetes@$version" | jq -r .GoMod)
"$go" mod init kubelet 2>/dev/null
# Kubernetes requires its own parts at v0.0.0, from directories next to it; the proxy has them as v0.34.4.
while read -r part; do
  "$go" mod edit -replace "$part=$part@v0.${version#v1.}"
done < <("$go" mod edit -json "$mod" | jq -r '.Require[] | select(.Version == "v0.0.0") | .Path')
"$go" mod edit -require "k8s.io/kubernetes@$version"
# What it replaces beyond its own parts does not count here, nor need it.
printf 'package main\n\nimport _ "k8s.io/kubernetes/cmd/kubelet/app"\n' >main.go
printf '\nfunc main() {}\n' >>main.go
"$go" mod tidy
"$go" build -trimpath -buildvcs=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$program.new" k8s.io/kubernetes/cmd/kubelet
mv "$program.new" "$program"
