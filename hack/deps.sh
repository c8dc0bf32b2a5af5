#!/usr/bin/env bash
# Installs what is missing to build, test and demonstrate Coracle on Debian or
# Ubuntu, and checks Go. Silent, and offline, if nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# gcc … make: the shim and coracle-oci (cgo, libseccomp, static).
# busybox-static: the demo and test images. iproute2: tests look at links with ip.
# nftables: the portmap CNI plugin in the tests calls nft; Coracle itself does not.
# containernetworking-plugins: the plugins that a node has from its distribution, in tests; they call iptables.
# groff-base: packaging/release.sh checks manual pages.
# curl: the demo reaches its Service by a node port.
# isal: igzip, which inflates large layers. erofs-utils, skopeo, umoci, e2fsprogs: images and their layers in tests. uidmap: containers of ordinary users. runc, crun: what runtime handlers call in tests. jq: hack/tools.sh reads `go mod download -json`. bzip2: busybox' source.
# gcc-aarch64-linux-gnu (gcc-x86-64-linux-gnu on arm64): the starter's code of the other architecture is built again and compared.
packages=(gcc libc6-dev pkg-config libseccomp-dev make git ca-certificates
  busybox-static iproute2 isal nftables groff-base jq shellcheck bzip2 uidmap runc crun
  erofs-utils skopeo umoci e2fsprogs containernetworking-plugins iptables curl)

# install PACKAGE...: those that are missing.
install() {
  local p missing=() sudo=()
  for p in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || {
    echo "deps: no apt-get here; install by hand: ${missing[*]}" >&2
    exit 1
  }
  if ((EUID != 0)); then
    command -v sudo >/dev/null || {
      echo "deps: ${missing[*]} missing: run 'make deps' as root" >&2
      exit 1
    }
    sudo=(sudo)
  fi
  echo "deps: installing ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)
  # A broken third-party source must not stop us: what counts is whether the packages install.
  "${apt[@]}" update || echo "deps: apt-get update failed in part, going on" >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# fetch_go DIR: the Go toolchain from the module proxy, where `go` itself takes
# toolchains from, into DIR.
fetch_go() {
  local version=1.26.8 arch sum proxy tmp
  case $(uname -m) in
    x86_64) arch=amd64 sum=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
    aarch64) arch=arm64 sum=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
    *)
      echo "deps: Go is missing: install Go $version or newer (https://go.dev/dl)" >&2
      exit 1
      ;;
  esac
  install curl unzip
  echo "deps: Go is missing: fetching Go $version into ${1#"$PWD"/}"
  proxy=${GOPROXY:-https://proxy.golang.org}
  tmp=$(mktemp -d)
  curl -fsSL -o "$tmp/go.zip" "${proxy%%[,|]*}/golang.org/toolchain/@v/v0.0.1-go$version.linux-$arch.zip"
  echo "$sum  $tmp/go.zip" | sha256sum --check --quiet
  unzip -q "$tmp/go.zip" -d "$tmp"
  chmod +x "$tmp"/golang.org/toolchain@*/bin/* "$tmp"/golang.org/toolchain@*/pkg/tool/*/*
  rm -rf "$1"
  mkdir -p "$(dirname "$1")"
  mv "$tmp"/golang.org/toolchain@* "$1"
  rm -rf "$tmp"
}

case $(uname -m) in
  x86_64) packages+=(gcc-aarch64-linux-gnu) ;;
  aarch64) packages+=(gcc-x86-64-linux-gnu) ;;
esac
install "${packages[@]}"
# Checkpoints. Not every release of a distribution has criu, and not every criu knows the kernel: tests say so.
criu=$(apt-cache policy criu 2>/dev/null | awk '$1 == "Candidate:" { print $2 }' || true)
if [[ -n $criu && $criu != "(none)" ]] && ! (set -e; install criu); then
  echo "deps: criu cannot be installed, checkpoints are not tested" >&2
fi
go=${GO:-go}
want=$(awk '$1 == "go" {print $2; exit}' go.mod)
if [[ $go == "$PWD"/bin/go/bin/go && ! -x $go ]]; then
  fetch_go "$PWD/bin/go"
fi
if ! command -v "$go" >/dev/null; then
  echo "deps: $go: no such program; unset GO, or set it to Go $want or newer" >&2
  exit 1
fi
# With GOTOOLCHAIN=auto an older Go (1.21 and up) fetches the right one by itself.
if ! have=$("$go" env GOVERSION 2>&1); then
  echo "deps: Go $want or newer is needed: $have" >&2
  exit 1
fi
if [[ $(printf '%s\n' "$want" "${have#go}" | sort -V | head -1) != "$want" ]]; then
  echo "deps: Go $want or newer is needed, $(command -v "$go") is $have: install it from https://go.dev/dl, or set GO=/path/to/go" >&2
  exit 1
fi
