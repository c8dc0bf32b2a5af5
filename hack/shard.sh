#!/usr/bin/env bash
# shard.sh K/N BINARY WEIGHTS: runs the K-th of N parts of a compiled test binary's tests, in the
# working directory. WEIGHTS has lines "TestName seconds" for slow tests; any other test counts as
# one second. The parts depend only on these inputs, cover every test, and take about the same time:
# the longest test comes first, and each test goes to the part with the least time so far.
set -euo pipefail
k=${1%/*} n=${1#*/} binary=$2 weights=$3

all=$("$binary" -test.list '^Test')
stale=$(awk '!/^#/ { print $1 }' "$weights" | grep -vxF -f <(printf '%s\n' "$all") || true)
[[ -z $stale ]] || { echo "shard.sh: $weights names tests that $binary has not: ${stale//$'\n'/ }" >&2; exit 1; }
mine=$(awk -v k="$k" -v n="$n" '
  NR == FNR { if ($1 !~ /^#/) weight[$1] = $2; next }
  /^Test/ { print ($1 in weight ? weight[$1] : 1), $1 }' "$weights" <(printf '%s\n' "$all") |
  LC_ALL=C sort -k1,1nr -k2 |
  awk -v k="$k" -v n="$n" '{
    least = 1
    for (i = 2; i <= n; i++) if (load[i] < load[least]) least = i
    load[least] += $1
    if (least == k) print $2
  }')
[[ -n $mine ]] || { echo "shard.sh: part $1 of $binary has no tests" >&2; exit 1; }

# All output goes to a log. The end of each test is counted there: a binary that ends without having
# run its tests must not pass.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
"$binary" -test.run "^($(paste -sd'|' <<<"$mine"))\$" -test.v -test.timeout 20m >"$log" 2>&1 || status=$?
ended=$(grep -acE '^--- (PASS|FAIL|SKIP): ' "$log" || true)
wanted=$(wc -l <<<"$mine")
if ((status == 0 && ended != wanted)); then
  echo "shard.sh: $ended of $wanted tests have ended" >&2
  status=1
fi
if ((status)); then
  cat "$log"
else
  grep -a -A3 -E '^ *--- SKIP: ' "$log" || true
fi
grep -a -E '^--- ' "$log" | sort -t'(' -k2 -nr | head -5
echo "$([[ $status == 0 ]] && echo ok || echo FAIL) $(basename "$binary") part $1: $ended tests"
exit "$status"
