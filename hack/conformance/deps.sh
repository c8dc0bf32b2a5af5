#!/usr/bin/env bash
# deps.sh: what the conformance suite's images have of this machine, from the distribution.
set -euo pipefail

apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }

missing=()
for p in bash bind9-dnsutils curl iperf iproute2 jq netcat-openbsd util-linux; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
done
((${#missing[@]})) || exit 0
echo "conformance: installing ${missing[*]}"
apt update || true
apt install -y --no-install-recommends "${missing[@]}" >/dev/null
