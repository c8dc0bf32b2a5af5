#!/usr/bin/env bash
# build.sh: builds what `make test-csi` runs into bin/csi: Kubernetes' own programs that connect a cluster with a CSI driver,
# as their projects release them, csi-sanity, and the projects' manifests: roles and the kinds of snapshots. Each is a main module:
# its own go.sum pins what it is made of. The driver is that of hack/csi/driver. The registrar is ours, too: the Go module proxy does
# not have upstream's.
set -euo pipefail
# shellcheck source=hack/gobuild.sh
source "$(dirname "${BASH_SOURCE[0]}")/../gobuild.sh"

PROVISIONER=v6.3.0 # the newest whose modules the proxy has
ATTACHER=v4.13.0
RESIZER=v2.3.0
SNAPSHOTTER=v8.7.0
SANITY=v5.6.0
RECIPE=1 # raise it when something below changes

out=$repo/bin/csi
mkdir -p "$out/.stamp" "$out/manifests"
exec 9>"$out/.lock"
flock 9
tmp=
trap '[[ -z $tmp ]] || rm -rf "$tmp"' EXIT

# Go finds out itself whether there is something to do.
(
  cd "$repo/hack/csi"
  "$go" build -ldflags '-s -w' -o "$out/csi-driver" ./driver
  "$go" build -ldflags '-s -w' -o "$out/csi-node-driver-registrar" ./registrar
)

# program MODULE VERSION PACKAGE...: builds programs unless their stamp exists.
program() {
  local module=$1 version=$2 stamp name src
  shift 2
  name=$(basename "${module%/v[0-9]*}")
  stamp=$out/.stamp/$name-$version-$RECIPE
  [[ ! -e $stamp ]] || return 0
  [[ -n $tmp ]] || tmp=$(mktemp -d)
  echo "csi: building $module $version" >&2
  src=$tmp/$name
  cp -r "$(cd "$tmp" && "$go" mod download -json "$module@$version" | jq -r .Dir)" "$src"
  chmod -R u+w "$src"
  rm -rf "$src/vendor"
  # The snapshotter's module takes another one from its own repository, which is a module apart for the proxy.
  if grep -q '=> ./client' "$src/go.mod"; then
    cp -r "$(cd "$tmp" && "$go" mod download -json "${module%/v*}/client/${module##*/}@$version" | jq -r .Dir)" "$src/client"
    chmod -R u+w "$src/client"
  fi
  (cd "$src" && "$go" build -mod=mod -ldflags "-s -w -X main.version=$version" -o "$out/" "$@")
  "keep_${name//-/_}" "$src"
  rm -rf "$src" "$out/.stamp/$name"-*
  touch "$stamp"
}

# keep NAME FILE: a manifest of the module.
keep() { install -m 0644 "$2" "$out/manifests/$1.yaml"; }

keep_external_provisioner() { keep provisioner-rbac "$1/deploy/kubernetes/rbac.yaml"; }
keep_external_attacher() { keep attacher-rbac "$1/deploy/kubernetes/rbac.yaml"; }
keep_external_resizer() { keep resizer-rbac "$1/deploy/kubernetes/rbac.yaml"; }
keep_external_snapshotter() {
  keep snapshotter-rbac "$1/deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml"
  keep snapshot-controller-rbac "$1/deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml"
  local kind
  for kind in volumesnapshotclasses volumesnapshotcontents volumesnapshots; do
    keep "$kind" "$1/client/config/crd/snapshot.storage.k8s.io_$kind.yaml"
  done
}
keep_csi_test() { :; }

program github.com/kubernetes-csi/csi-test/v5 "$SANITY" ./cmd/csi-sanity
program github.com/kubernetes-csi/external-attacher/v4 "$ATTACHER" ./cmd/csi-attacher
program github.com/kubernetes-csi/external-resizer/v2 "$RESIZER" ./cmd/csi-resizer
program github.com/kubernetes-csi/external-snapshotter/v8 "$SNAPSHOTTER" ./cmd/csi-snapshotter ./cmd/snapshot-controller
program github.com/kubernetes-csi/external-provisioner/v6 "$PROVISIONER" ./cmd/csi-provisioner
