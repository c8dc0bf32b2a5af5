#!/usr/bin/env bash
# release.sh VERSION [DIRECTORY]: the files of a release for amd64 and arm64 (default: out/release):
#   coracle_*.deb, coracle-kube_*.deb       Debian packages
#   coracle-VERSION-linux-ARCH.tar.gz       all programs, manual pages, completions, licences
#   coracle-VERSION-linux-ARCH.cdx.json     what is linked into them (CycloneDX)
#   coracle-VERSION-relink-ARCH.tar.gz      what the programs with libseccomp and the C library are linked from
#   coracle-VERSION-lgpl-sources.tar        the sources of those libraries
#   install.sh, vulnerabilities.txt, SHA256SUMS
#
# Times are those of the last commit. The same sources make the same files (packaging/reproduce.sh). ARCHS chooses
# architectures; SKIP_SOURCES=1 leaves out the libraries' sources, for trials. DIRECTORY has to be empty, or to contain an
# earlier release, which is replaced when the new one is complete.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=${1:?version}
directory=$(realpath -m -- "${2:-$repo/out/release}")
cd "$repo"
if [[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] && ! grep -qsF "## $version - " CHANGELOG.md; then
  echo "release: CHANGELOG.md has no heading '## $version - DATE'" >&2
  exit 1
fi

# The files of a release, for find.
ours=(-type f -regextype posix-extended
  -regex '.*/(coracle(-kube)?_[^/]+\.deb|coracle-[^/]+\.(tar|tar\.gz|cdx\.json)|install\.sh|vulnerabilities\.txt|SHA256SUMS)')
mkdir -p "$directory"
others=$(find "$directory" -mindepth 1 -maxdepth 1 ! \( "${ours[@]}" \))
if [[ $others || (! -e $directory/SHA256SUMS && $(ls -A "$directory")) ]]; then
  echo "release: $directory is neither empty nor an earlier release: choose another directory" >&2
  exit 1
fi
export GO=${GO:-go} LC_ALL=C TZ=UTC
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/release
mkdir "$out"
host=$(dpkg --print-architecture)
declare -A target=([amd64]=x86_64-linux-gnu [arm64]=aarch64-linux-gnu)

# archive NAME PARENT: the tree PARENT/NAME as NAME.tar.gz
archive() {
  tar -C "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c "$1" |
    gzip -9n >"$out/$1.tar.gz"
}

# same PROGRAM LINKED: whether LINKED is PROGRAM, but for the checksum of Go's FIPS module, which Go's linker writes after
# all, and which only programs in FIPS mode read.
same() {
  local offset size
  read -r offset size < <(readelf -SW "$1" | sed -n 's/^ *\[ *[0-9]*\] //p' | awk '$1 == ".go.fipsinfo" { print $4, $5 }')
  [[ $(stat -c %s "$1") == "$(stat -c %s "$2")" ]] &&
    { cmp -l "$1" "$2" || true; } | awk -v from="$((16#$offset))" -v size="$((16#$size))" '$1 <= from || $1 > from + size { exit 1 }'
}

# programs ARCH: builds the programs in $stage/bin, unless they are there. It sets what the rest is built with.
programs() {
  triple=${target[$1]}
  stage=$work/$1
  sysroot=$(packaging/sysroot.sh "$1")
  cc=$triple-gcc
  local env=("GOARCH=$1")
  if [[ $sysroot != / ]]; then
    # The names of headers are in the debug information of objects.
    cc="$cc --sysroot=$sysroot -ffile-prefix-map=$sysroot="
    env+=("PKG_CONFIG_SYSROOT_DIR=$sysroot" "PKG_CONFIG_LIBDIR=$sysroot/usr/lib/$triple/pkgconfig")
  fi
  [[ ! -d $stage/bin ]] || return 0
  mkdir -p "$stage/bin"
  env "CC=$cc" "${env[@]}" make --no-print-directory binaries VERSION="$version" OUT="$stage/bin" \
    RELINK="$stage/relink/coracle-$version-relink-$1"
}

# Manual pages and completions are printed by programs of this machine's architecture: those are built first.
read -ra archs <<<"${ARCHS:-$host $(tr ' ' '\n' <<<"${!target[*]}" | grep -vx "$host")}"
programs "$host"
for arch in "${archs[@]}"; do
  programs "$arch"

  ARCH=$arch BIN=$stage/bin HOSTBIN=$work/$host/bin STAGE=$stage CC=$cc RELEASE=$version packaging/build.sh "$out" >/dev/null

  # All programs.
  name=coracle-$version-linux-$arch
  "$stage/bom" -version "$version" -time "$SOURCE_DATE_EPOCH" -sources .:cluster -libraries "$stage/libraries" \
    -notices "$stage/NOTICES" -sbom "$out/$name.cdx.json" "$stage"/bin/*
  tree=$stage/tree/$name
  mkdir -p "$tree/share"
  cp -a "$stage"/root/usr/{bin,lib} "$tree/"
  cp -a "$stage"/root/usr/share/{man,bash-completion,zsh,fish} "$tree/share/"
  mv "$tree/share/zsh/vendor-completions" "$tree/share/zsh/site-functions" # where zsh looks below /usr/local
  mkdir -p "$tree/share/doc/coracle"
  cp -a "$stage"/root/usr/share/doc/coracle{,-kube}/*.md "$stage"/root/usr/share/examples/* "$tree/share/doc/coracle/"
  cp -a LICENSE CHANGELOG.md "$stage/NOTICES" "$tree/share/doc/coracle/"
  archive "$name" "$stage/tree"

  # What the statically linked programs are linked from.
  relink=$stage/relink/coracle-$version-relink-$arch
  sed "s/CC_DEFAULT/$triple-gcc/" packaging/relink.sh >"$relink/relink.sh"
  chmod 0755 "$relink/relink.sh"
  cp /usr/share/common-licenses/LGPL-2.1 "$relink/"
  LDFLAGS=
  if [[ $sysroot != / ]]; then LDFLAGS=--sysroot=$sysroot; fi
  for program in containerd-shim-coracle-v1 coracle-oci-libcontainer; do
    LDFLAGS=$LDFLAGS "$relink/relink.sh" "$program" "$work/again"
    same "$stage/bin/$program" "$work/again" || {
      echo "release: $program for $arch is not what its objects are linked to" >&2
      exit 1
    }
  done
  archive "$(basename "$relink")" "$stage/relink"
done

if [[ ! ${SKIP_SOURCES:-} ]]; then
  sources=$work/sources/coracle-$version-lgpl-sources
  mkdir -p "$sources" "$work"/apt/{sources,lists/partial}
  for list in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
    [[ ! -e $list ]] || sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/apt/sources/${list##*/}"
  done
  [[ ! -e /etc/apt/sources.list ]] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/apt/sources/main.list"
  apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/sources"
    -o Dir::State::lists="$work/apt/lists" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (
    cd "$sources"
    for p in libseccomp-dev libc6-dev; do
      "${apt[@]}" source --download-only --only-source "$(dpkg-query -W -f '${source:Package}=${source:Version}' "$p")"
    done
  )
  tar -C "$work/sources" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
    -cf "$out/coracle-$version-lgpl-sources.tar" "$(basename "$sources")"
fi

# Known vulnerabilities: a report, since the database changes and the release does not.
(cd packaging/tools && "$GO" build -o "$work" golang.org/x/vuln/cmd/govulncheck)
{
  echo "Known vulnerabilities in the programs of $version for ${archs[0]}, found by govulncheck."
  for program in "$work/${archs[0]}"/bin/*; do
    printf '\n%s\n' "${program##*/}"
    if report=$(timeout 120 "$work/govulncheck" -mode=binary ${GOVULNDB:+-db "$GOVULNDB"} "$program" 2>&1); then
      echo "$report"
    elif grep -q '^Vulnerability #' <<<"$report"; then
      echo "$report"
    else
      # The reason for that, without what depends on this machine.
      echo "NOT CHECKED: the database of vulnerabilities could not be read."
      echo "release: ${program##*/}: govulncheck: ${report##*$'\n'}" >&2
    fi
  done
} >"$out/vulnerabilities.txt"

sed "s/^version=VERSION/version=$version/; s/Coracle VERSION/Coracle $version/" packaging/install.sh >"$out/install.sh"
chmod 0755 "$out/install.sh"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)

# The installed release is what was asked for.
if [[ " ${archs[*]} " == *" $host "* ]]; then
  root=$work/installed
  "$out/install.sh" --prefix "$root" >/dev/null
  for b in coracled coracle coracle-oci coracle-kube coracle-bgp; do
    "$root/bin/$b" --version | grep -qwF "$version" || {
      echo "release: $b --version does not name $version" >&2
      exit 1
    }
    "$root/bin/$b" --help >/dev/null
  done
  for page in "$root"/share/man/man8/*.8.gz; do
    # groff warns of what a page gets wrong.
    warnings=$(zcat "$page" | groff -Kutf8 -man -Tutf8 -ww -z 2>&1) || warnings=${warnings:-groff fails}
    [[ ! $warnings ]] || { echo "release: ${page##*/}: $warnings" >&2; exit 1; }
  done
  for f in "$root"/share/bash-completion/completions/*; do bash -n "$f"; done
fi

find "$directory" -mindepth 1 -maxdepth 1 "${ours[@]}" -delete
mv "$out"/* "$directory/"
(cd "$directory" && ls -l)
