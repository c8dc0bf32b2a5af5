#!/usr/bin/env bash
# tools.sh NAME...: builds third-party tools at pinned versions into bin/tools.
#   crictl critest   sigs.k8s.io/cri-tools
#   kubectl          at the version of Kubernetes that cluster/ is made of
#   registry         the CNCF distribution registry
#   cni              reference CNI plugins, into bin/tools/cni
#   flannel          flanneld, which connects nodes
#   runc-shim        containerd's shim for runc, containerd-shim-runc-v2
#   helm             helm.sh/helm/v4
#   busybox          from the distribution's source (see below)
# Go tools come through the Go module proxy and are built as main modules, so that
# their own go.sum pins what they are made of. Idempotent and silent: a stamp
# names version and recipe.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CRITOOLS=v1.36.0
DISTRIBUTION=v3.1.2
CNI=v1.9.1
FLANNEL=v0.28.10
CONTAINERD=v2.4.2
HELM=v4.3.1
RECIPE=1 # raise it when a recipe below changes

out=$PWD/bin/tools
mkdir -p "$out/.stamp" "$out/cni"
# One builder at a time: make may run targets in parallel.
exec 9>"$out/.lock"
flock 9

go=${GO:-go}
tmp=
trap '[[ -z $tmp ]] || rm -rf "$tmp"' EXIT

# wanted NAME VERSION: whether it has to be built.
wanted() { [[ ! -e $out/.stamp/$1-$2-$RECIPE ]]; }

# built NAME VERSION: replaces older stamps.
built() {
  rm -f "$out/.stamp/$1"-*
  touch "$out/.stamp/$1-$2-$RECIPE"
}

# fetch MODULE VERSION: a writable copy of the module in $src.
fetch() {
  local dir
  [[ -n $tmp ]] || tmp=$(mktemp -d)
  echo "tools: building $1 $2" >&2
  dir=$(cd "$tmp" && GOWORK=off "$go" mod download -json "$1@$2" | jq -r .Dir)
  src=$tmp/$(basename "$1")-$2
  [[ -d $src ]] || { cp -r "$dir" "$src" && chmod -R u+w "$src"; }
}

# compile OUT PACKAGE LDFLAGS: in $src.
compile() { (cd "$src" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-tags=netgo,osusergo "$go" build -mod=mod -trimpath -buildvcs=false -ldflags "-s -w $3" -o "$1" "$2"); }

crictl() {
  wanted crictl "$CRITOOLS" || return 0
  fetch sigs.k8s.io/cri-tools "$CRITOOLS"
  compile "$out/crictl" ./cmd/crictl "-X sigs.k8s.io/cri-tools/pkg/version.Version=${CRITOOLS#v}"
  built crictl "$CRITOOLS"
}

# critest as upstream releases it, but for one digest: it pulls an image by the
# digest of a build that no one else can repeat. imagetool makes an image with
# the same purpose whose digest is always the same.
critest() {
  wanted critest "$CRITOOLS" || return 0
  local upstream=9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf ours
  ours=$(bin/test/imagetool digest)
  fetch sigs.k8s.io/cri-tools "$CRITOOLS"
  grep -q "$upstream" "$src/pkg/validate/consts.go" || {
    echo "tools: critest $CRITOOLS no longer names the digest $upstream" >&2
    return 1
  }
  sed -i "s/sha256:$upstream/$ours/" "$src/pkg/validate/consts.go"
  (cd "$src" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-tags=netgo,osusergo "$go" test -mod=mod -c -trimpath -ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=${CRITOOLS#v}" \
    -o "$out/critest" ./cmd/critest)
  built critest "$CRITOOLS"
}

runc-shim() {
  wanted runc-shim "$CONTAINERD" || return 0
  fetch github.com/containerd/containerd/v2 "$CONTAINERD"
  compile "$out/containerd-shim-runc-v2" ./cmd/containerd-shim-runc-v2 ""
  built runc-shim "$CONTAINERD"
}

kubectl() {
  local version
  version=$(cd cluster && GOWORK=off "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
  wanted kubectl "$version" || return 0
  echo "tools: building kubectl $version" >&2
  (cd cluster && CGO_ENABLED=0 GOWORK=off GOFLAGS="-tags=$(sed -n 's/^OTHERTAGS *:= *//p' ../Makefile)" "$go" build -trimpath -buildvcs=false -ldflags "-s -w \
    -X k8s.io/component-base/version.gitVersion=$version" -o "$out/kubectl" k8s.io/kubernetes/cmd/kubectl)
  built kubectl "$version"
}

registry() {
  wanted registry "$DISTRIBUTION" || return 0
  fetch github.com/distribution/distribution/v3 "$DISTRIBUTION"
  compile "$out/registry" ./cmd/registry "-X github.com/distribution/distribution/v3/version.version=$DISTRIBUTION"
  built registry "$DISTRIBUTION"
}

cni() {
  wanted cni "$CNI" || return 0
  fetch github.com/containernetworking/plugins "$CNI"
  local p
  for p in main/bridge main/loopback ipam/host-local meta/portmap; do
    compile "$out/cni/$(basename "$p")" "./plugins/$p" "-X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=$CNI"
  done
  built cni "$CNI"
}

flannel() {
  wanted flannel "$FLANNEL" || return 0
  fetch github.com/flannel-io/flannel "$FLANNEL"
  # Without that of a cloud whose SDK is not in every module proxy, and one that needs C.
  sed -i '/backend\/tencentvpc"/d; /backend\/udp"/d' "$src/main.go"
  compile "$out/flanneld" . "-X github.com/flannel-io/flannel/pkg/version.Version=$FLANNEL"
  built flannel "$FLANNEL"
}

helm() {
  wanted helm "$HELM" || return 0
  fetch helm.sh/helm/v4 "$HELM"
  compile "$out/helm" ./cmd/helm "-X helm.sh/helm/v4/internal/version.version=$HELM"
  built helm "$HELM"
}

# critest wants the error that busybox' shell gives when a command on disk cannot be
# executed. Debian's and Ubuntu's busybox-static prefer applets to what is on disk
# and never look: so their source is built with the default configuration.
busybox() {
  wanted busybox distro || return 0
  [[ -n $tmp ]] || tmp=$(mktemp -d)
  echo "tools: building busybox from the distribution's source" >&2
  local b=$tmp/busybox list
  mkdir -p "$b"/{sources,lists/partial,src}
  for list in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
    [[ ! -e $list ]] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$b/sources/${list##*/}"
  done
  [[ ! -e /etc/apt/sources.list ]] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$b/sources/main.list"
  (
    cd "$b/src"
    apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$b/sources"
      -o Dir::State::lists="$b/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    "${apt[@]}" source --download-only busybox
    mkdir tree && tar xf busybox_*.orig.tar.* -C tree --strip-components=1
    cd tree
    make defconfig
    # tc does not compile with newer kernel headers
    sed -i 's/^# CONFIG_STATIC is not set/CONFIG_STATIC=y/; s/^CONFIG_TC=y/# CONFIG_TC is not set/' .config
    make oldconfig </dev/null
    make -j"$(nproc)" busybox
    install -m 0755 busybox "$out/busybox"
  ) >"$tmp/busybox.log" 2>&1 || {
    tail -20 "$tmp/busybox.log" >&2
    return 1
  }
  built busybox distro
}

for name in "$@"; do
  case $name in
    crictl | critest | kubectl | registry | cni | flannel | runc-shim | helm | busybox) "$name" ;;
    *)
      echo "tools: $name: no such tool" >&2
      exit 2
      ;;
  esac
done
