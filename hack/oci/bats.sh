#!/usr/bin/env bash
# bats.sh [FILE...]: runc's own tests (tests/integration of its release) on coracle-oci and on runc,
# on the same machine. Without names: all but those of CRIU, sshfs and SELinux. It fails if
# coracle-oci fails what runc passes and bats-known.txt does not explain. Needs root; test.sh bats
# has built what it needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=$PWD/bin/oci
out=$bin/bats/results
known=$PWD/hack/oci/bats-known.txt
longest=${BATS_FILE_TIMEOUT:-600} # seconds for one file
mkdir -p "$out"
export PATH=$bin:$PATH

cd "$bin/bats/tests/integration"
(($#)) || {
  mapfile -t files < <(printf '%s\n' *.bats | sed 's/\.bats$//' | grep -vE '^(checkpoint|mounts_sshfs|selinux)$')
  set -- "${files[@]}"
}

# A standard input that says nothing and never ends: script types its end into the terminal.
rm -f "$out/silence"
mkfifo "$out/silence"
exec 7<>"$out/silence"
run() { # RUNTIME FILE: the results in $out. runc wants a terminal to run containers with one.
  RUNC=$bin/$1 timeout -k 5 "$longest" script -qefc "bats --tap $2.bats" /dev/null <&7 2>&1 |
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

bad=0
printf '%-26s %12s %12s\n' file coracle-oci runc
for file; do
  run coracle-oci "$file"
  run runc "$file"
  printf '%-26s %5s of %3s %5s of %3s\n' "$file" \
    "$(passed coracle-oci "$file" | count)" "$( (passed coracle-oci "$file" && failed coracle-oci "$file") | count)" \
    "$(passed runc "$file" | count)" "$( (passed runc "$file" && failed runc "$file") | count)"
  while read -r test; do
    grep -qFx -- "$test" <(passed runc "$file") || continue # it fails on runc, too
    grep -qF -- "$file | $test | " "$known" && continue
    echo "  coracle-oci alone fails: $test" >&2
    bad=1
  done < <(failed coracle-oci "$file")
done
tidy
exit $bad
