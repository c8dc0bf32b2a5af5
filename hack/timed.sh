#!/usr/bin/env bash
# timed.sh PART CMD...: runs CMD as one part of `make test`, and records in out/times its duration
# and its CPU time. It prints nothing itself. `timed.sh --report` prints the table, and fails if a
# part failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=out/times

if [[ $1 == --report ]]; then
  printf '\n%-22s %8s %8s  %s\n' part "wall s" "cpu s" result
  # In the order in which they ended.
  awk '{ printf "%-22s %8.1f %8.1f  %s\n", $1, $2, $3, $4 ? "FAILED (exit status " $4 ")" : "ok"; cpu += $3; bad += $4 != 0 }
    END { printf "%-22s %8s %8.1f  %d parts, %d failed\n", "all", "", cpu, NR, bad; exit bad != 0 }' "$times" || status=1
  if [[ -s out/untested ]]; then
    printf '\nnot tested on this machine:\n'
    sort -u out/untested | sed 's/^/  /'
  fi
  exit "${status:-0}"
fi

part=$1
shift
mkdir -p out
status=0
began=$EPOCHREALTIME
"$@" || status=$?
ended=$EPOCHREALTIME
# The second line is the children's times, as 0m1.234s. A subshell would have other children.
times >"$times.$$"
read -r user system < <(tail -1 "$times.$$")
rm "$times.$$"
seconds() { awk -v t="$1" 'BEGIN { split(t, p, /[ms]/); print p[1] * 60 + p[2] }'; }
awk -v p="$part" -v b="$began" -v e="$ended" -v u="$(seconds "$user")" -v s="$(seconds "$system")" -v r="$status" \
  'BEGIN { printf "%s %.3f %.3f %d\n", p, e - b, u + s, r }' >>"$times"
exit "$status"
