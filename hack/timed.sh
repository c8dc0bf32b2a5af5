#!/usr/bin/env bash
# timed.sh PART CMD...: runs CMD as one part of `make test`, and records in out/times its duration
# and its CPU time, and in out/parts what it prints. It prints nothing itself. `timed.sh --report`
# prints the table and the failed tests, and fails if a part failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=out/times parts=out/parts

# failures prints what a log says about each failed test: with `go test -v` it stands before the
# line of the test, otherwise below it.
failures() {
  awk '
    /^ *--- FAIL: / { for (i = max(1, n - 5); i <= n; i++) print before[i]; print; n = 0; more = 8; next }
    /^(=== | *--- |ok  |FAIL|PASS)/ { n = more = 0; next }
    /^(panic:|fatal error:|WARNING: DATA RACE|make.*Error)/ { more = 8 }
    more > 0 { print; more--; next }
    { before[++n] = $0 }
    function max(a, b) { return a > b ? a : b }' "$1" | cut -c1-300 | head -60
}

if [[ $1 == --report ]]; then
  printf '\n%-22s %8s %8s  %s\n' part "wall s" "cpu s" result
  # In the order in which they ended.
  awk '{ printf "%-22s %8.1f %8.1f  %s\n", $1, $2, $3, $4 ? "FAILED (exit status " $4 ")" : "ok"; cpu += $3; bad += $4 != 0 }
    END { printf "%-22s %8s %8.1f  %d parts, %d failed\n", "all", "", cpu, NR, bad; exit bad != 0 }' "$times" || status=1
  if [[ -s out/untested ]]; then
    printf '\nnot tested on this machine:\n'
    sort -u out/untested | sed 's/^/  /'
  fi
  while read -r part _ _ failed; do
    [[ $failed == 0 ]] || { printf '\nfailed in %s:\n' "$part"; failures "$parts/$part.log"; }
  done <"$times"
  exit "${status:-0}"
fi

part=$1
shift
mkdir -p "$parts"
status=0
began=$EPOCHREALTIME
"$@" 2>&1 | tee "$parts/$part.log" || status=$?
ended=$EPOCHREALTIME
# The second line is the children's times, as 0m1.234s. A subshell would have other children.
times >"$times.$$"
read -r user system < <(tail -1 "$times.$$")
rm "$times.$$"
seconds() { awk -v t="$1" 'BEGIN { split(t, p, /[ms]/); print p[1] * 60 + p[2] }'; }
awk -v p="$part" -v b="$began" -v e="$ended" -v u="$(seconds "$user")" -v s="$(seconds "$system")" -v r="$status" \
  'BEGIN { printf "%s %.3f %.3f %d\n", p, e - b, u + s, r }' >>"$times"
exit "$status"
