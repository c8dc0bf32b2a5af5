#!/usr/bin/env bash
# deps.sh: mkfs.btrfs for the driver of `make test-csi`, from the distribution.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
command -v mkfs.btrfs >/dev/null && exit 0
command -v apt-get >/dev/null || {
  echo "csi: no apt-get here; install btrfs-progs by hand" >&2
  exit 1
}
apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }
echo "csi: installing btrfs-progs"
apt update || true
apt install -y --no-install-recommends btrfs-progs >/dev/null
