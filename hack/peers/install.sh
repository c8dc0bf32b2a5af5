#!/usr/bin/env bash
# Builds the runtimes that `make bench` compares with into bin/peers: containerd and
# runc, CRI-O with crun and conmon. Go programs come through the Go module proxy and
# are built the way their makers build them; crun, conmon and libraries are the
# distribution's, or crun's source where the distribution's is too old.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

RUNC=v1.5.2
CONTAINERD=v2.4.2
CRIO=v1.36.3
CRUN=1.21 # at least; Debian 12's rejects what current runtimes write
RECIPE=1

out=$PWD/bin/peers
mkdir -p "$out/bin" "$out/.stamp"
go=${GO:-go}
export GOWORK=off GOFLAGS="-mod=mod -buildvcs=false"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

wanted() { [[ ! -e $out/.stamp/$1-$2-$RECIPE ]]; }
built() {
  rm -f "$out/.stamp/$1"-*
  touch "$out/.stamp/$1-$2-$RECIPE"
  echo "peers: $1 $2" >&2
}
fetch() { # MODULE VERSION: into $src
  src=$tmp/$(basename "$(dirname "$1")")-$(basename "$1")
  cp -r "$(cd "$tmp" && "$go" mod download -json "$1@$2" | jq -r .Dir)" "$src"
  chmod -R u+w "$src"
}
packages() { # NAME...: as hack/deps.sh does
  local p missing=() sudo=()
  for p in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || sudo=(sudo)
  echo "peers: installing ${missing[*]}" >&2
  "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=600 update || true
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

if wanted runc "$RUNC"; then
  packages gcc libseccomp-dev pkg-config
  fetch github.com/opencontainers/runc "$RUNC"
  (cd "$src" && CGO_ENABLED=1 "$go" build -trimpath -buildmode=pie -tags "seccomp urfave_cli_no_docs netgo osusergo" \
    -ldflags "-s -w -linkmode external -extldflags -static-pie" -o "$out/bin/runc" .)
  built runc "$RUNC"
fi

if wanted containerd "$CONTAINERD"; then
  fetch github.com/containerd/containerd/v2 "$CONTAINERD"
  ld="-s -w -X github.com/containerd/containerd/v2/version.Version=$CONTAINERD"
  (cd "$src" && CGO_ENABLED=1 "$go" build -trimpath -buildmode=pie -tags urfave_cli_no_docs -ldflags "$ld" -o "$out/bin/containerd" ./cmd/containerd
    CGO_ENABLED=0 "$go" build -trimpath -tags "urfave_cli_no_docs no_grpc" -ldflags "$ld" -o "$out/bin/containerd-shim-runc-v2" ./cmd/containerd-shim-runc-v2)
  built containerd "$CONTAINERD"
fi

if wanted crio "$CRIO"; then
  packages gcc make libc6-dev libseccomp-dev libgpgme-dev libbtrfs-dev libassuan-dev pkg-config conmon iptables
  fetch github.com/cri-o/cri-o "$CRIO"
  (cd "$src" && CGO_ENABLED=1 "$go" build -trimpath \
    -tags "containers_image_ostree_stub containers_image_openpgp seccomp exclude_graphdriver_btrfs btrfs_noversion exclude_graphdriver_devicemapper" \
    -ldflags "-s -w" -o "$out/bin/crio" ./cmd/crio
    make -s -C pinns >/dev/null && install -m 0755 bin/pinns "$out/bin/pinns")
  ln -sf "$(command -v conmon)" "$out/bin/conmon"
  built crio "$CRIO"
fi

# crun_source DIR: the source of crun from a Debian that has CRUN, into DIR/src.
crun_source() {
  local signed=/usr/share/keyrings/debian-archive-keyring.gpg
  packages debian-archive-keyring
  mkdir -p "$1"/{sources,lists/partial,src}
  echo "deb-src [signed-by=$signed] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >"$1/sources/trixie.list"
  (
    cd "$1"
    apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$1/sources" -o Dir::State::lists="$1/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    # Mirrors may lack the description file: the upstream archive is all that is needed.
    "${apt[@]}" source --download-only crun || true
    tar xf crun_*.orig.tar.* -C src --strip-components=1
  )
}

if wanted crun "$CRUN"; then
  have=$({ crun --version || true; } 2>/dev/null | sed -n '1s/.* //p') # often there is none
  if [[ -n $have && $(printf '%s\n' "$CRUN" "$have" | sort -V | head -n 1) == "$CRUN" ]]; then
    ln -sf "$(command -v crun)" "$out/bin/crun"
  else
    packages gcc make autoconf automake libtool libyajl-dev libcap-dev libseccomp-dev pkg-config gperf python3
    if ! { crun_source "$tmp/crun" && cd "$tmp/crun/src" &&
      ./configure --disable-systemd --disable-criu CFLAGS=-O2 && make -j"$(nproc)"; } >"$tmp/crun.log" 2>&1; then
      tail -n 20 "$tmp/crun.log" >&2
      exit 1
    fi
    strip -o "$out/bin/crun" "$tmp/crun/src/crun"
    chmod 0755 "$out/bin/crun"
  fi
  built crun "$CRUN"
fi
