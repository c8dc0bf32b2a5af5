#!/usr/bin/env bash
# kube.sh [kubelet]: builds upstream's own cluster into bin/peers/bin: etcd, kube-apiserver,
# kube-controller-manager, kube-scheduler, kubelet, or the last alone. They are what
# cluster/ is compared with, and what runs on coracled, from the same module at the same version.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../cluster"

go=${GO:-go}
out=$PWD/../bin/peers
mkdir -p "$out/bin" "$out/.stamp"
version=$(GOWORK=off "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
stamp=$out/.stamp/kube-$version
[[ ! -e $stamp ]] || exit 0
kubelet=$out/.stamp/kubelet-$version
if [[ ${1:-} == kubelet && -e $kubelet ]]; then exit 0; fi
export CGO_ENABLED=0 GOWORK=off GOFLAGS= # not those of our own programs: a kubelet needs all of gRPC
echo "peers: building Kubernetes $version" >&2
programs=(k8s.io/kubernetes/cmd/{kubelet,kube-apiserver,kube-controller-manager,kube-scheduler})
[[ ${1:-} != kubelet ]] || programs=("${programs[0]}")
"$go" build -trimpath -buildvcs=false -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$out/bin/" "${programs[@]}"
if [[ ${1:-} == kubelet ]]; then
  rm -f "$out/.stamp"/kubelet-*
  touch "$kubelet"
  exit 0
fi
# etcd's program needs modules that its server as a package does not: a module of its own.
etcd=$("$go" list -m -f '{{.Path}}@{{.Version}}' go.etcd.io/etcd/server/v3)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
"$go" mod init etcd
"$go" get "$etcd"
"$go" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$out/bin/etcd" "${etcd%@*}"
rm -f "$out/.stamp"/kube-* "$out/.stamp"/kubelet-*
touch "$stamp"
echo "peers: Kubernetes $version" >&2
