#!/usr/bin/env bash
# deps.sh: BIRD, the router of `make test-bgp`, from the distribution, without its service.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
command -v bird >/dev/null && exit 0
command -v apt-get >/dev/null || {
  echo "bgp: no apt-get here; install BIRD 2 by hand" >&2
  exit 1
}
apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }
echo "bgp: installing bird2"
apt update || true
# The package starts a router, now and at each boot, unless its unit is masked.
unit=/etc/systemd/system/bird.service
if [[ ! -e $unit && -d ${unit%/*} ]]; then
  ln -s /dev/null "$unit"
fi
apt install -y --no-install-recommends bird2 >/dev/null
