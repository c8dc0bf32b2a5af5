# Where the demo lives; sourced by up.sh and down.sh.
# shellcheck shell=bash disable=SC2034

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=${DEMO_ROOT:-/var/lib/coracle-demo}
state=${DEMO_STATE:-/run/coracle-demo}
socket=$state/coracle.sock
registry=127.0.0.1:${DEMO_REGISTRY_PORT:-5055}
port=${DEMO_API_PORT:-6443}
services=${DEMO_SERVICE_CIDR:-10.96.0.0/16}
coracle=$repo/bin/coracle
imagetool=$repo/bin/test/imagetool # makes the images, and is their registry
config=$root/coracled.toml
cgroup=${DEMO_CGROUP:-coracle-demo} # parent of the pods' cgroups

die() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

# alive FILE EXE: whether the process whose id is in FILE lives and runs EXE; a pid may
# belong to somebody else by now.
alive() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [[ -n $pid && $(readlink "/proc/$pid/exe") == "$2"* ]]
}

# as_root ARGS: starts this script again as root if it is not.
as_root() {
  ((EUID == 0)) || exec sudo --preserve-env=DEMO_ROOT,DEMO_STATE,DEMO_CGROUP,DEMO_REGISTRY_PORT,DEMO_API_PORT,DEMO_SERVICE_CIDR,GO "$0" "$@"
}
