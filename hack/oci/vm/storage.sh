#!/bin/sh
# In the guest: tests of volumes that need file systems with quotas and an NFS server.
set -eu

# Unpacked only, so that their services do not start by themselves. What the guest has already stays as it is.
if ! [ -x /usr/sbin/mkfs.xfs ] || ! [ -x /usr/sbin/rpc.nfsd ] || ! [ -x /usr/sbin/mount.nfs ]; then
  [ -e /b/debs/complete ] || {
    echo "storage: the guest has no mkfs.xfs, rpc.nfsd or mount.nfs: use one with xfsprogs, nfs-common and nfs-kernel-server, or Debian 12"
    exit 1
  }
  for deb in /b/debs/*.deb; do
    case $(dpkg-query -W -f '${Status}' "$(dpkg-deb -f "$deb" Package)" 2>/dev/null) in *" installed") continue ;; esac
    dpkg --force-depends --unpack "$deb" >/var/tmp/dpkg.log 2>&1 || {
      tail -n 20 /var/tmp/dpkg.log
      exit 1
    }
  done
  ldconfig
fi
for m in loop xfs nfsd nfs; do modprobe "$m"; done
ip link set lo up

# The server speaks NFS 4 only, which needs no rpcbind. Without the short times, it would let no
# client open a file for 90 seconds after its start.
mkdir -p /srv /var/lib/nfs/v4recovery
touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
rpc.nfsd --no-nfs-version 3 --lease-time 10 --grace-time 10 4
rpc.mountd --no-nfs-version 3

# run PROGRAM TEST...: runs these tests, each of which has to be there and pass.
bad=0
run() {
  name=$1 log=/var/tmp/$1.log
  shift
  pattern="^($(echo "$@" | tr ' ' '|'))\$"
  mkdir -p "/var/tmp/$name" && cd "/var/tmp/$name"
  TMPDIR=/var/tmp "/b/$name.test" -test.v -test.timeout 0 -test.run "$pattern" >"$log" 2>&1 || {
    bad=1
    tail -n 60 "$log"
  }
  for t; do
    grep -q -- "^--- PASS: $t " "$log" || { echo "$t has not passed"; bad=1; }
  done
  echo "$name: $(grep -c -- '--- PASS' "$log") passed, $(grep -c -- '--- FAIL' "$log") failed"
}
run localpath TestProjectQuotas
run snapshot TestQuotasOfXFS TestQuotasThatAreNotEnforced
run volume TestNFSServer TestNFSServerRefuses TestNFSServerGoesAway
exit $bad
