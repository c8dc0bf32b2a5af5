#!/usr/bin/env bash
# build.sh NAME...: builds what `make test-oci` needs into bin/oci.
#   runc      the reference runtime, at the version of the library that we link
#   bats      runc's own tests, with the programs and images that they need
#   programs  the validation programs of opencontainers/runtime-tools, and their root file system
#   criu      checkpoint/restore in user space, if the one at hand cannot work on this kernel
#   podman    the distribution's podman
# Idempotent and silent if nothing is to do: a stamp names version and recipe.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

RUNTIME_TOOLS=v0.9.0
CRIU_SUITE=sid # Debian's suite whose criu knows the newest kernels
RECIPE=1       # raise it when a recipe below changes

out=$PWD/bin/oci
mkdir -p "$out/.stamp"
# One builder at a time: make may run targets in parallel.
exec 9>"$out/.lock"
flock 9

go=${GO:-go}
export GOWORK=off
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

wanted() { [[ ! -e $out/.stamp/$1-$2-$RECIPE ]]; }
built() {
  rm -f "$out/.stamp/$1"-*
  touch "$out/.stamp/$1-$2-$RECIPE"
  echo "oci: built $1 $2" >&2
}
fetch() { # MODULE VERSION: a writable copy in $src
  src=$tmp/$(basename "$1")
  cp -r "$(cd "$tmp" && "$go" mod download -json "$1@$2" | jq -r .Dir)" "$src"
  chmod -R u+w "$src"
}
packages() { # NAME...: installs what is missing
  local p missing=() sudo=()
  for p in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || sudo=(sudo)
  echo "oci: installing ${missing[*]}" >&2
  "${sudo[@]}" apt-get -qq -o DPkg::Lock::Timeout=600 update || true
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

runc() {
  local module=github.com/opencontainers/runc version
  version=$("$go" list -m -f '{{.Version}}' "$module")
  wanted runc "$version" || return 0
  fetch "$module" "$version"
  (cd "$src" && CGO_ENABLED=1 "$go" build -mod=mod -trimpath -buildvcs=false -tags "seccomp netgo osusergo" \
    -ldflags "-s -w -linkmode external -extldflags -static" -o "$out/runc" .)
  built runc "$version"
}

# The tests are runc's, unchanged. Their images come from Debian: busybox with all its applets, and a
# minimal system.
bats() {
  local module=github.com/opencontainers/runc version dir=$out/bats name
  version=$("$go" list -m -f '{{.Version}}' "$module")
  packages bats debootstrap gawk jq tini uidmap sshfs dropbear-bin openssh-client openssh-sftp-server
  wanted bats "$version" || return 0
  fetch "$module" "$version"
  rm -rf "$dir"
  mkdir -p "$dir/tests/cmd/_bin"
  cp -r "$src/tests/integration" "$dir/tests/"
  cp "$src/go.mod" "$dir/"
  for name in "$src"/tests/cmd/*/; do
    (cd "$src" && CGO_ENABLED=1 "$go" build -mod=mod -trimpath -buildvcs=false -tags seccomp -o "$dir/tests/cmd/_bin/" "./tests/cmd/$(basename "$name")")
  done
  mkdir -p "$tmp/busybox"/{bin,dev,etc,home,root,tmp,usr,var}
  cp "$(command -v busybox)" "$tmp/busybox/bin/busybox"
  for name in $(busybox --list); do
    [[ $name == busybox ]] || ln "$tmp/busybox/bin/busybox" "$tmp/busybox/bin/$name"
  done
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$tmp/busybox/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$tmp/busybox/etc/group"
  chmod 1777 "$tmp/busybox/tmp"
  tar -C "$tmp/busybox" -czf "$dir/busybox.tar.gz" .
  debootstrap --variant=minbase "$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")" "$tmp/debian" >"$tmp/debootstrap.log" 2>&1 || {
    tail "$tmp/debootstrap.log" >&2
    return 1
  }
  tar -C "$tmp/debian" --exclude './dev/*' --exclude './var/cache/*' -czf "$dir/debian.tar.gz" .
  # Instead of the one that fetches images.
  printf '#!/bin/sh\necho "BUSYBOX_IMAGE=%s/busybox.tar.gz DEBIAN_IMAGE=%s/debian.tar.gz"\n' "$dir" "$dir" >"$dir/tests/integration/get-images.sh"
  chmod +x "$dir/tests/integration/get-images.sh"
  built bats "$version"
}

# The release has no go.mod: programs/ has one, with the newest versions of its libraries
# that it compiles with.
#
# Every program's config.json has a seccomp profile of 2018 that lets nothing pass which
# kernels have gained since. No present runtime can start a container under it (they make
# calls of their own between loading the filter and executing the program), so that every
# program would fail and none would tell anything. The calls that are missing are added.
#
# Two programs race with the container that they look at, and fail when the runtime is fast:
# killsig signals a shell that may not have set its trap yet, pidfile wants a container
# running whose program is "true".
programs() {
  wanted programs "$RUNTIME_TOOLS" || return 0
  fetch github.com/opencontainers/runtime-tools "$RUNTIME_TOOLS"
  cp hack/oci/programs/go.{mod,sum} "$src/"
  local profile=$src/generate/seccomp/seccomp_default.go call
  for call in statx openat2 close_range faccessat2 rseq clone3 pidfd_open pidfd_send_signal \
    fsopen fsconfig fsmount open_tree move_mount epoll_pwait2 futex_waitv; do
    sed -i "0,/\"splice\",/s//\"splice\", \"$call\",/" "$profile"
  done
  grep -q '"statx"' "$profile" || {
    echo "oci: the seccomp profile of runtime-tools $RUNTIME_TOOLS is not where it was" >&2
    return 1
  }
  patch_line validation/killsig/killsig.go 'err = r.Kill(signal)' 'time.Sleep(time.Second); &'
  patch_line validation/pidfile/pidfile.go '"true"' '"sleep", "100"'
  rm -rf "$out/programs"
  mkdir -p "$out/programs"
  (cd "$src" && CGO_ENABLED=0 "$go" build -trimpath -buildvcs=false -ldflags "-s -w" -o "$out/programs/" ./cmd/runtimetest ./validation/...)
  rootfs "$out/programs"
  built programs "$RUNTIME_TOOLS"
}

patch_line() { # FILE TEXT REPLACEMENT, in $src
  grep -qF "$2" "$src/$1" || {
    echo "oci: $1 of runtime-tools $RUNTIME_TOOLS has no $2" >&2
    return 1
  }
  sed -i "s/$2/$3/" "$src/$1"
}

# rootfs DIR: the archive that programs unpack; the release has it for two architectures only.
rootfs() {
  local arch
  arch=$("$go" env GOARCH)
  if [[ -e $src/rootfs-$arch.tar.gz ]]; then
    cp "$src/rootfs-$arch.tar.gz" "$1/"
    return
  fi
  local root=$tmp/rootfs
  mkdir -p "$root"/{bin,dev,etc,proc,sys,tmp}
  cp "$(command -v busybox)" "$root/bin/busybox"
  (cd "$root/bin" && ./busybox --list | xargs -I{} -n1 ln -sf busybox {} && ln -sf busybox bb)
  echo "root:x:0:0:root:/:/bin/sh" >"$root/etc/passwd"
  tar -C "$root" -czf "$1/rootfs-$arch.tar.gz" .
}

# criu follows the kernel closely: a distribution's may be too old for the kernel that runs.
criu() {
  local have
  for have in "$out/criu" "$(command -v criu || true)"; do
    [[ -x $have ]] && "$have" --no-default-config check >/dev/null 2>&1 && return 0 # which may name a log here
  done
  wanted criu "$CRIU_SUITE" || return 0
  packages gcc make pkg-config debian-archive-keyring libbsd-dev libcap-dev libgnutls28-dev libnet1-dev \
    libnl-3-dev libprotobuf-c-dev libprotobuf-dev protobuf-c-compiler protobuf-compiler uuid-dev python3-protobuf
  local b=$tmp/criu
  mkdir -p "$b"/{sources,lists/partial,src}
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $CRIU_SUITE main" >"$b/sources/criu.list"
  (
    cd "$b"
    apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$b/sources" -o Dir::State::lists="$b/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    # Mirrors may lack the description file: the upstream archive is all that is needed.
    "${apt[@]}" source --download-only criu || true
    tar xf criu_*.orig.tar.* -C src --strip-components=1
    make -C src -j"$(nproc)" criu
    strip -o "$out/criu" src/criu/criu
  ) >"$tmp/criu.log" 2>&1 || {
    tail -n 20 "$tmp/criu.log" >&2
    return 1
  }
  built criu "$CRIU_SUITE"
}

# catatonit is the first process of podman's pods.
podman() { packages podman conmon catatonit busybox-static; }

for name in "$@"; do
  case $name in
    runc | bats | programs | criu | podman) "$name" ;;
    *)
      echo "oci: $name: no such thing to build" >&2
      exit 2
      ;;
  esac
done
