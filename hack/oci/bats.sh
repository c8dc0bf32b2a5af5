#!/usr/bin/env bash
# bats.sh [FILE...]: runc's own tests (tests/integration of its release) on coracle-oci and on runc,
# on the same machine. Without names: all but those of CRIU and SELinux. It fails if
# coracle-oci fails what runc passes and bats-known.txt does not explain, if an entry there explains
# nothing, or if a file's run ends before its last test. Needs root; test.sh bats
# has built what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$PWD/bin/oci
out=$bin/bats/results
known=$PWD/hack/oci/bats-known.txt
sshfs=$PWD/hack/oci/sshfs.sh
longest=${BATS_FILE_TIMEOUT:-600} # seconds for one file
processor=$(sed -n 's/^Cpus_allowed_list:[^0-9]*\([0-9]*\).*/\1/p' /proc/self/status) # the first that may be used
mkdir -p "$out"
export PATH=$bin:$PATH

cd "$bin/bats/tests/integration"
# runc's helpers start the receiver of terminals and go on: on a busy machine a container may come before it listens, and
# that test fails whatever the runtime. They wait for it here (__SO_ACCEPTCON in /proc/net/unix).
# shellcheck disable=SC2016 # for the helpers
wait='until grep -qE "^[^ ]+ [^ ]+ [^ ]+ 00010000 .* $CONSOLE_SOCKET\$" /proc/net/unix; do sleep 0.01; done'
grep -qF -- "$wait" helpers.bash || sed -i "/\/recvtty\" --pid-file/r /dev/stdin" helpers.bash <<<"$wait"
grep -qF -- "$wait" helpers.bash || { echo "bats.sh: helpers.bash of this release does not start recvtty as it did" >&2; exit 1; }

(($#)) || {
  mapfile -t files < <(printf '%s\n' *.bats | sed 's/\.bats$//' | grep -vE '^(checkpoint|selinux)$')
  set -- "${files[@]}"
}

# A standard input that says nothing and never ends: script types its end into the terminal.
rm -f "$out/silence"
mkfifo "$out/silence"
# An entry for a file that is gone explains nothing either.
while read -r name; do
  [[ -e $name.bats ]] || { echo "bats-known.txt: there is no file $name.bats" >&2; exit 1; }
done < <(awk -F ' [|] ' '!/^#/ && NF { print $1 }' "$known" | sort -u)
exec 7<>"$out/silence"
# RUNTIME FILE: the results in $out. runc wants a terminal to run containers with one. tini reaps what outlives its parent
# at once: tests look for two seconds whether a process is gone, and the machine's init may take longer.
run() {
  local where=()
  case $2 in
    *sshfs*) where=("$sshfs") ;;
    # A mount namespace can be bound to a file only from one with a smaller number. In Linux 6.18 each processor numbers in
    # ranges of its own (6.19 ended that), so that this needs both to come from the same processor.
    mounts_propagation_unsafe) where=(taskset --cpu-list "$processor" unshare --mount --propagation unchanged) ;;
  esac
  RUNC=$bin/$1 timeout -k 5 "$longest" "${where[@]}" tini -s -- script -qefc "bats --tap $2.bats" /dev/null <&7 2>&1 |
    tr -d '\r' >"$out/$1-$2.tap" || true
}
# The tests make a directory for each controller of version 1 that the kernel has, mounted or not.
before=$(ls /sys/fs/cgroup)
tidy() {
  local d
  [[ ! -e /sys/fs/cgroup/cgroup.controllers ]] || return 0
  for d in /sys/fs/cgroup/*/; do
    grep -qFx -- "$(basename "$d")" <<<"$before" || mountpoint -q "$d" || rm -rf "$d"
  done
}
passed() { sed -n '/# skip/d; s/^ok [0-9]* //p' "$out/$1-$2.tap"; }
failed() { sed -n 's/^not ok [0-9]* //p' "$out/$1-$2.tap"; }
count() { wc -l | tr -d ' '; }
# whole RUNTIME FILE: whether every test of bats' plan has a result. A run that dies, or is too slow, has not.
whole() {
  local plan got
  plan=$(sed -n 's/^1\.\.\([0-9]*\)$/\1/p' "$out/$1-$2.tap" | head -1)
  got=$(grep -cE '^(not )?ok [0-9]+ ' "$out/$1-$2.tap" || true)
  [[ ${plan:-0} -gt 0 && $plan == "$got" ]] && return
  echo "  $1: $got of ${plan:-unknown} tests have a result: see $out/$1-$2.tap" >&2
  return 1
}
# stale FILE: entries of bats-known.txt that explain nothing: coracle-oci passes the test, or there is none of that name.
stale() {
  local test
  while read -r test; do
    if grep -qFx -- "$test" <(passed coracle-oci "$1"); then
      echo "  bats-known.txt: coracle-oci passes $1 | $test" >&2
    elif ! sed -n 's/^\(not \)*ok [0-9]* //p' "$out/coracle-oci-$1.tap" | sed 's/ # skip.*//' | grep -qFx -- "$test"; then
      echo "  bats-known.txt: there is no $1 | $test" >&2
    else
      continue
    fi
    bad=1
  done < <(awk -F ' [|] ' -v f="$1" '!/^#/ && $1 == f { print $2 }' "$known")
}

# Some tests leave files behind. Others run as another user, or have sockets, whose paths must be short.
TMPDIR=$(mktemp -dp "${TMPDIR:-/tmp}" XXX)
export TMPDIR
chmod 1777 "$TMPDIR"
trap 'rm -rf --one-file-system "$TMPDIR"' EXIT
bad=0
printf '%-26s %12s %12s\n' file coracle-oci runc
for file; do
  run coracle-oci "$file"
  run runc "$file"
  printf '%-26s %5s of %3s %5s of %3s\n' "$file" \
    "$(passed coracle-oci "$file" | count)" "$( (passed coracle-oci "$file" && failed coracle-oci "$file") | count)" \
    "$(passed runc "$file" | count)" "$( (passed runc "$file" && failed runc "$file") | count)"
  whole coracle-oci "$file" || bad=1
  whole runc "$file" || bad=1
  stale "$file"
  while read -r test; do
    grep -qFx -- "$test" <(passed runc "$file") || continue # it fails on runc, too
    grep -qF -- "$file | $test | " "$known" && continue
    echo "  coracle-oci alone fails: $test" >&2
    bad=1
  done < <(failed coracle-oci "$file")
done
tidy
exit $bad
