#!/usr/bin/env bash
# Ends the demo, whatever state it is in, and removes all that it made.
set -euo pipefail
# shellcheck source=hack/demo/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ -e $root || -e $state ]] || exit 0
as_root "$@"

# The cluster process, pods, coracled and all that they made: the parts know what
# it is, also when they are dead.
if [[ ! -e $config ]]; then
  : # nothing but the registry was ever started
elif [[ -x $coracle ]]; then
  "$coracle" down --purge --delete-volumes --root "$root" --state "$state" ||
    die "coracle down failed; what it could not remove is named above"
else
  die "$coracle is missing: run 'make build' first"
fi

if alive "$root/registry.pid" "$imagetool"; then
  pid=$(cat "$root/registry.pid")
  kill "$pid"
  tail --pid="$pid" -f /dev/null
fi

# The parent of the pods' cgroups is ours: coracled removes only what is below.
find /sys/fs/cgroup -depth -type d \( -path "*/$cgroup" -o -path "*/$cgroup/*" \) -exec rmdir {} + 2>/dev/null || true

left=$(awk -v r="$root/" -v s="$state/" '$5 != r && (index($5, r) == 1 || index($5, s) == 1) {print $5}' /proc/self/mountinfo)
[[ -z $left ]] || die "still mounted, nothing removed: $left"
rm -rf --one-file-system "$root" "$state"
echo "down: the demo is gone"
