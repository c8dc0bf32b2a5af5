#!/usr/bin/env bash
# Makes the Debian packages of the binaries in BIN (default: bin) in a directory (default: out/deb), in place of earlier ones.
# Their times are those of the last commit: the same sources make the same packages.
#
# COMPRESSION=none makes large packages quickly. ARCH is the architecture of the binaries, if not that of Go; HOSTBIN has
# binaries that run here, which print their manual pages. STAGE keeps the packages' files; RELEASE is
# the version, if not that of the last tag.
#
#   packaging/build.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
bin=$(realpath "${BIN:-bin}")
mkdir -p "${1:-out/deb}"
out=$(realpath "${1:-out/deb}")
stage=${STAGE:-}
if [[ -z $stage ]]; then
  stage=$(mktemp -d)
  trap 'rm -rf "$stage"' EXIT
fi
root=$stage/root
umask 022

ARCH=${ARCH:-$("$go" env GOARCH)}
hostbin=$(realpath "${HOSTBIN:-$bin}")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
# v1.2.3-4-gabcdef0 is 1.2.3+4.gabcdef0, which sorts after 1.2.3; without a tag, before every release.
version=$(git describe --tags --match 'v[0-9]*' 2>/dev/null || true)
if [[ ${RELEASE:-} == v[0-9]* ]]; then version=$RELEASE; fi
if [[ $version ]]; then
  version=${version#v}
  VERSION=$(sed -E 's/-([0-9]+-g[0-9a-f]+)$/+\1/; s/-/./2g; s/\+([0-9]+)-/+\1./; s/-/~/' <<<"$version")
else
  VERSION=0.0.0~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d).$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
fi
export ARCH SOURCE_DATE_EPOCH VERSION

# put MODE FILE DESTINATION
put() { install -D -m "$1" "$2" "$root$3"; }
# packed DESTINATION < TEXT, as the policy wants manual pages and changelogs
packed() { install -d "$(dirname "$root$1")" && gzip -9n >"$root$1.gz" && chmod 0644 "$root$1.gz"; }

for b in coracled containerd-shim-coracle-v1 coracle-lazy coracle-oci coracle-oci-libcontainer coracle coracle-kube coracle-bgp; do
  put 0755 "$bin/$b" "/usr/bin/$b"
done
for unit in coracled.service coracle.service; do
  sed 's|/usr/local/bin|/usr/bin|' "packaging/$unit" >"$stage/$unit"
  put 0644 "$stage/$unit" "/usr/lib/systemd/system/$unit"
done
put 0644 packaging/config.toml /etc/coracle/config.toml
for b in coracled coracle coracle-oci; do
  "$hostbin/$b" man | packed "/usr/share/man/man8/$b.8"
  for shell in bash:bash-completion/completions/$b zsh:zsh/vendor-completions/_$b fish:fish/vendor_completions.d/$b.fish; do
    "$hostbin/$b" completion "${shell%%:*}" >"$stage/completion"
    put 0644 "$stage/completion" "/usr/share/${shell#*:}"
  done
done
# pages PACKAGE PAGE...: Links lead to the package's other pages, or to the repository's.
ref=$(git rev-parse HEAD 2>/dev/null || echo main)
if [[ $version =~ ^[0-9.]+$ ]]; then ref=v$version; fi
pages() {
  local repository=https://github.com/coracle-project/coracle/blob/$ref package=$1 page base other
  shift
  for page in "$@"; do
    base=${page%"${page##*/}"}
    sed -E "s|\]\(\.\./([^):]+)\)|]($repository/\1)|g; s|\]\(([^):#][^):]*)\)|]($repository/$base\1)|g" "$page" >"$stage/page"
    for other in "$@"; do
      sed -i "s|]($repository/$other|](${other##*/}|g" "$stage/page"
    done
    put 0644 "$stage/page" "/usr/share/doc/$package/${page##*/}"
  done
}
pages coracle README.md docs/operations.md docs/images.md docs/migration.md
pages coracle-kube docs/kubernetes.md docs/cluster.md docs/cluster-file.md
put 0644 packaging/crictl.yaml /usr/share/examples/crictl.yaml
"$hostbin/coracled" config default >"$stage/config.toml"
put 0644 "$stage/config.toml" /usr/share/examples/config.toml
packed /usr/share/doc/coracle/CHANGELOG.md <CHANGELOG.md

# The licences of all that is linked, and the bill of materials. libseccomp and the C library are linked into the programs
# with cgo; libgcc is the compiler's own.
read -ra cc <<<"${CC:-gcc}"
libgcc=$(dpkg-query -S "$("${cc[@]}" -print-libgcc-file-name)")
lgpl=/usr/share/common-licenses/LGPL-2.1
{
  printf '%s\t' libseccomp "$(dpkg-query -W -f '${source:Version}' libseccomp-dev)" LGPL-2.1-only
  echo "/usr/share/doc/libseccomp-dev/copyright,$lgpl"
  printf '%s\t' glibc "$(dpkg-query -W -f '${source:Version}' libc6-dev)" LGPL-2.1-or-later
  echo "/usr/share/doc/libc6-dev/copyright,$lgpl"
  printf '%s\t' libgcc "$(dpkg-query -W -f '${source:Version}' "${libgcc%%: *}")" 'GPL-3.0-or-later WITH GCC-exception-3.1'
  echo "/usr/share/doc/${libgcc%%[: ]*}/copyright"
} >"$stage/libraries"
(cd packaging/tools && "$go" build -o "$stage" ./bom ./deb)
bom() {
  "$stage/bom" -version "${version:+v}${version:-$VERSION}" -time "$SOURCE_DATE_EPOCH" -sources .:cluster -libraries "$stage/libraries" \
    -notices "$stage/$1.notices" -sbom "$stage/$1.cdx.json" "${@:2}"
}
node=("$bin"/{coracled,containerd-shim-coracle-v1,coracle-lazy,coracle-oci,coracle-oci-libcontainer,coracle})
bom coracle "${node[@]}"
bom coracle-kube "$bin"/{coracle-kube,coracle-bgp}
for p in coracle coracle-kube; do
  packed "/usr/share/doc/$p/NOTICES" <"$stage/$p.notices"
  put 0644 "$stage/$p.cdx.json" "/usr/share/doc/$p/sbom.cdx.json"
  put 0644 "packaging/$p.copyright" "/usr/share/doc/$p/copyright"
  printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md in /usr/share/doc/coracle.\n\n -- %s  %s\n' "$p" "$VERSION" \
    "$(sed -n 's/^maintainer: //p' "packaging/$p.yaml")" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" |
    packed "/usr/share/doc/$p/changelog"
  put 0644 "packaging/$p.lintian-overrides" "/usr/share/lintian/overrides/$p"
done

# Older ones would be installed with them by a pattern.
rm -f "$out"/coracle{,-kube}_*_"$ARCH".deb
cp packaging/{,kube-}{postinst,prerm,postrm} "$stage"
packaging=$PWD/packaging
for p in coracle coracle-kube; do
  sed "s/^  compression: [a-z]*/  compression: ${COMPRESSION:-gzip}/" "$packaging/$p.yaml" >"$stage/$p.yaml"
  (cd "$stage" && ./deb -config "$p.yaml" -out "$out")
done
