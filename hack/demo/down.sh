#!/usr/bin/env bash
# Ends the demo, whatever state it is in, and removes all that it made.
set -euo pipefail
# shellcheck source=hack/demo/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
[[ -e $root || -e $state ]] || exit 0
as_root "$@"

# Pods, containers, shims, coracled, links and nftables rules: coracled knows
# what it made, also when it is dead.
if [[ ! -e $config ]]; then
  : # coracled was never started
elif [[ -x $coracled ]]; then
  "$coracled" purge --root "$root/coracle" --state "$state" --address "unix://$socket" --config "$config" ||
    die "coracled purge failed; what it could not remove is named above"
else
  die "$coracled is missing: run 'make build' first"
fi

if alive "$root/registry.pid" "$repo/bin/tools/registry"; then
  pid=$(cat "$root/registry.pid")
  kill "$pid"
  tail --pid="$pid" -f /dev/null
fi

# The parent of the pods' cgroups is ours: coracled removes only what is below.
find /sys/fs/cgroup -depth -type d -path "*/$cgroup*" -exec rmdir {} + 2>/dev/null || true

left=$(awk -v r="$root/" -v s="$state/" '$5 != r && (index($5, r) == 1 || index($5, s) == 1) {print $5}' /proc/self/mountinfo)
[[ -z $left ]] || die "still mounted, nothing removed: $left"
rm -rf --one-file-system "$root" "$state"
echo "down: the demo is gone"
