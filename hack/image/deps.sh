#!/usr/bin/env bash
# deps.sh: podman, skopeo and docker for `make test-image`, from the distribution. docker is only
# unpacked, into bin/image: installed, it would start a daemon.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

apt() { env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 "$@"; }

missing=()
for p in podman skopeo; do
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
done
if ((${#missing[@]})); then
  echo "image: installing ${missing[*]}"
  apt update || true
  apt install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

docker=$PWD/bin/image/docker
[[ -x $docker/usr/sbin/dockerd ]] && exit 0
echo "image: unpacking docker"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
apt update || true
(cd "$tmp" && apt-get -qq -o APT::Sandbox::User=root download docker.io containerd)
mkdir -p "$docker"
for p in "$tmp"/*.deb; do dpkg -x "$p" "$docker"; done
