#!/bin/sh
# install.sh: installs Coracle VERSION on this machine, or removes it.
#
#   install.sh [--prefix DIRECTORY] [--from URL]   below /usr/local, without starting anything
#   install.sh --uninstall [--prefix DIRECTORY]    ends cluster and pods; images and settings stay
#
# The archive lies next to this script, or is fetched from URL, and has to match SHA256SUMS of the same place. SHA256SUMS is
# not signed: it detects damage, and says nothing about who made the archive. A newer install.sh upgrades: restart coracled
# afterwards, containers go on.
set -eu

version=VERSION
prefix=/usr/local
here=$(cd "$(dirname "$0")" && pwd)
from=https://github.com/coracle-project/coracle/releases/download/$version
uninstall=

die() {
  echo "install.sh: $*" >&2
  exit 1
}

# Piped into a shell, it has no directory of its own.
if [ -f "$0" ] && [ -e "$here/SHA256SUMS" ]; then from=file://$here; fi
while [ $# -gt 0 ]; do
  case $1 in
  --prefix | --from)
    [ $# -ge 2 ] || die "$1 needs a value"
    if [ "$1" = --prefix ]; then prefix=$2; else from=$2; fi
    shift
    ;;
  --uninstall) uninstall=1 ;;
  -h | --help)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit
    ;;
  *) die "unknown argument $1; see --help" ;;
  esac
  shift
done
case $prefix in
/*) ;;
*) die "--prefix $prefix: not an absolute path" ;;
esac
# The unit and systemd have to agree on the path: one slash between names, none at the end.
prefix=$(printf '%s\n' "$prefix" | sed 's|//*|/|g; s|/$||')

uid=$(id -u)

# What is installed, one path below the prefix a line.
manifest=$prefix/share/doc/coracle/installed

if [ "$uninstall" ]; then
  [ -e "$manifest" ] || die "nothing is installed in $prefix by this script"
  unit=
  if [ -d /run/systemd/system ]; then unit=$(systemctl show --value -p FragmentPath coracled.service); fi
  if [ "$unit" ] && [ "$unit" != "$prefix/lib/systemd/system/coracled.service" ]; then
    # The state directory is that coracled's, and so are the pods.
    case $(systemctl show --value -p ActiveState coracled.service) in
    inactive | failed) unit= ;;
    *) die "$unit runs another coracled: stop it first, or remove that installation instead" ;;
    esac
  fi
  # Cluster and pods are in directories that all installations share. If only programs of others run, they are theirs.
  ours='' others='' bin=$(cd "$prefix/bin" && pwd -P) root=$(stat -Lc %d:%i /)
  for p in /proc/[0-9]*; do
    exe=$(readlink "$p/exe" 2>/dev/null) || exe=
    if [ ! "$exe" ]; then
      if [ "$uid" != 0 ] && grep -qs '^coracle' "$p/comm"; then die "programs of Coracle run: only root can tell whose, and end them"; fi
      continue
    fi
    case ${exe% (deleted)} in
    */coracle | */coracled | */coracle-kube | */coracle-lazy | */containerd-shim-coracle-v1) ;;
    *) continue ;;
    esac
    [ "$(stat -Lc %d:%i "$p/root" 2>/dev/null)" = "$root" ] || continue # in a container
    case $exe in
    "$bin"/*) ours=1 ;;
    *) others=1 ;;
    esac
  done
  ends=
  if [ "$uid" = 0 ] && { [ "$ours" ] || [ ! "$others" ]; }; then ends=1; fi
  if [ "$ends" ]; then
    if [ "$unit" ] && [ -e "${unit%/*}/coracle.service" ]; then systemctl disable --now coracle.service; fi # older ones have none
    "$prefix/bin/coracle" down
    if [ "$unit" ]; then systemctl disable --now coracled.service; fi
    "$prefix/bin/coracled" purge --stopped # one that still runs is not of this installation, or was started by hand
  fi
  while read -r f; do rm -f "$prefix/$f"; done <"$manifest"
  rm -f "$manifest"
  rmdir "$prefix/share/doc/coracle" 2>/dev/null || true # unless others have files there
  if [ "$unit" ]; then systemctl daemon-reload; fi
  echo "Coracle is removed from $prefix; images and settings are in /var/lib/coracle and /etc/coracle."
  if [ "$others" ] && [ ! "$ends" ]; then echo "Coracle of another directory runs: its cluster and pods go on."; fi
  exit
fi

case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) die "there are no programs for $(uname -m)" ;;
esac
name=coracle-$version-linux-$arch

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for f in SHA256SUMS "$name.tar.gz"; do
  case $from in
  file://*) cp "${from#file://}/$f" "$tmp/$f" ;;
  # A redirection must not lead away from https.
  https://*) curl -fsSL --proto '=https' -o "$tmp/$f" "$from/$f" || die "$from/$f cannot be fetched" ;;
  *) curl -fsSL --proto-redir '=https' -o "$tmp/$f" "$from/$f" || die "$from/$f cannot be fetched" ;;
  esac
done
(cd "$tmp" && grep "  $name.tar.gz\$" SHA256SUMS >sums && sha256sum -c sums >/dev/null) || die "$name.tar.gz does not match SHA256SUMS"
umask 022
tar xzf "$tmp/$name.tar.gz" -C "$tmp" --no-same-owner
(cd "$tmp/$name" && find . ! -type d) | sed 's|^\./||' | LC_ALL=C sort >"$tmp/new"
# The units name the directory of the programs.
for unit in "$tmp/$name"/lib/systemd/system/*.service; do
  sed "s|/usr/bin/|$prefix/bin/|" "$unit" >"$tmp/unit"
  cat "$tmp/unit" >"$unit"
done
while read -r f; do
  mkdir -p "$(dirname "$prefix/$f")"
  # A new file each: a program that runs cannot be written to.
  cp -P -p "$tmp/$name/$f" "$prefix/$f.new"
  if [ "$uid" = 0 ]; then chown -h 0:0 "$prefix/$f.new"; fi
  mv -f "$prefix/$f.new" "$prefix/$f"
done <"$tmp/new"
# What an older version had, and this one has not.
if [ -e "$manifest" ]; then
  LC_ALL=C comm -23 "$manifest" "$tmp/new" | while read -r f; do rm -f "$prefix/$f"; done
fi
cp "$tmp/new" "$manifest"
echo "Coracle $version is in $prefix. Start it:"
# systemd reads the units of these prefixes.
systemd=
case $prefix in
"" | /usr | /usr/local) if [ -d /run/systemd/system ]; then systemd=1; fi ;;
esac
if [ "$systemd" ]; then
  systemctl daemon-reload
  echo "  systemctl enable --now coracled     # after an upgrade: systemctl restart coracled"
else
  echo "  $prefix/bin/coracled"
fi
echo "or a single-node Kubernetes: $prefix/bin/coracle up"
if [ "$systemd" ]; then echo "  systemctl enable coracle            # and at boot, with /etc/coracle/cluster.yaml"; fi
