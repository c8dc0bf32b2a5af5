#!/usr/bin/env bash
# timed.sh PART CMD...: runs CMD as one part of `make test`. It records the part's duration and CPU
# time in out/times, and what CMD prints in out/parts. `timed.sh --report` prints the table and what
# failed, and fails if a part failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
times=out/times parts=out/parts

# failures prints what a log says about each failed test: with `go test -v` it stands before the
# line of the test, otherwise below it. Without a failed test it prints the log's end. All is
# indented: hack/status counts lines that begin with "--- FAIL".
failures() {
  local found
  found=$(awk '
    /^ *--- FAIL: / { for (i = n > 5 ? n - 4 : 1; i <= n; i++) say(before[i]); say($0); n = 0; more = 8; next }
    /^(=== | *--- |ok  |FAIL|PASS)/ { n = more = 0; next }
    /^(panic:|fatal error:|WARNING: DATA RACE)/ { more = 8 }
    more > 0 { say($0); more--; next }
    { before[++n] = $0 }
    function say(line) { if (said++ < 60) print substr(line, 1, 300) }' "$1")
  [[ -n $found ]] || found=$(tail -20 "$1" | cut -c1-300)
  # shellcheck disable=SC2001 # each line
  sed 's/^/  /' <<<"$found"
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
    [[ $failed == 0 ]] || { printf '\nfailed in %s:\n' "$part"; failures "$parts/$part.log" || true; }
  done <"$times"
  exit "${status:-0}"
fi

part=$1
shift
mkdir -p "$parts"
status=0
began=$EPOCHREALTIME
log=$parts/$part.log
if [[ -t 1 ]]; then
  "$@" 2>&1 | tee "$log" || status=$?
else # a process that CMD leaves behind must not keep a pipe open
  "$@" >"$log" 2>&1 || status=$?
  cat "$log"
fi
ended=$EPOCHREALTIME
# The second line is the children's times, as 0m1.234s. A subshell would have other children.
times >"$times.$$"
read -r user system < <(tail -1 "$times.$$")
rm "$times.$$"
seconds() { awk -v t="$1" 'BEGIN { split(t, p, /[ms]/); print p[1] * 60 + p[2] }'; }
awk -v p="$part" -v b="$began" -v e="$ended" -v u="$(seconds "$user")" -v s="$(seconds "$system")" -v r="$status" \
  'BEGIN { printf "%s %.3f %.3f %d\n", p, e - b, u + s, r }' >>"$times"
exit "$status"
