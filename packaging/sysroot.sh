#!/usr/bin/env bash
# sysroot.sh ARCH: prints the directory with the C libraries that programs with cgo are linked with for ARCH, Debian's name of
# an architecture. That is / for this machine's; for another one they are fetched with apt into bin/sysroot/ARCH, in the
# versions that this machine has. Idempotent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
arch=$1
if [[ $arch == "$(dpkg --print-architecture)" ]]; then
  echo /
  exit
fi
packages=(linux-libc-dev) # the kernel's headers: the newest
for p in libc6-dev libseccomp-dev; do
  packages+=("$p=$(dpkg-query -W -f '${Version}' "$p")")
done
root=$PWD/bin/sysroot/$arch
if [[ $(cat "$root/.stamp" 2>/dev/null) != "${packages[*]}" ]]; then
  echo "sysroot: fetching ${packages[*]} for $arch" >&2
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  mkdir -p "$tmp"/{lists,archives}/partial "$tmp/debs"
  apt=(apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::lists="$tmp/lists"
    -o Dir::State::status=/dev/null -o Dir::Cache::archives="$tmp/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root)
  # A source that does not serve the architecture must not stop us: what counts is whether the packages are there.
  "${apt[@]}" update >&2 || true
  (cd "$tmp/debs" && "${apt[@]}" download "${packages[@]}") >&2
  rm -rf "$root"
  mkdir -p "$root"
  for deb in "$tmp"/debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
  echo "${packages[*]}" >"$root/.stamp"
fi
echo "$root"
