#!/usr/bin/env bash
# Builds upstream's own cluster into bin/peers/bin: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet. They are what cluster/ is compared
# with, from the same module at the same version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../cluster"

go=${GO:-go}
out=$PWD/../bin/peers
mkdir -p "$out/bin" "$out/.stamp"
version=$(GOWORK=off "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
stamp=$out/.stamp/kube-$version
[[ ! -e $stamp ]] || exit 0
export CGO_ENABLED=0 GOWORK=off
echo "peers: building Kubernetes $version" >&2
"$go" build -trimpath -buildvcs=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$out/bin/" \
  k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet}
# etcd's program needs modules that its server as a package does not: a module of its own.
etcd=$("$go" list -m -f '{{.Path}}@{{.Version}}' go.etcd.io/etcd/server/v3)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
"$go" mod init etcd
"$go" get "$etcd"
"$go" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$out/bin/etcd" "${etcd%@*}"
rm -f "$out/.stamp"/kube-*
touch "$stamp"
echo "peers: Kubernetes $version" >&2
