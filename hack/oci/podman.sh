#!/usr/bin/env bash
# podman.sh: podman over coracle-oci, with containers of a root file system: run, detach,
# exec, terminals, logs, pause, update, pods, checkpoint and restore. Each step says ok or
# what went wrong. Everything it makes is below one temporary directory and in cgroups
# that go with the containers.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

runtime=${RUNTIME:-$PWD/bin/oci/coracle-oci}
tmp=$(mktemp -d)
failed=0

# Debian's podman wants limits that a machine in a machine may not set.
cat >"$tmp/containers.conf" <<EOF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
EOF
export CONTAINERS_CONF=$tmp/containers.conf
export PATH=$PWD/bin/oci:$PATH # criu
cd "$tmp" || exit # criu leaves logs where podman runs

podman() { command timeout 120 podman --root "$tmp/root" --runroot "$tmp/run" --tmpdir "$tmp/tmp" --storage-driver vfs --runtime "$runtime" "$@"; }
# shellcheck disable=SC2317 # the trap calls it
end() {
  podman rm --all --force --time 0 >/dev/null 2>&1
  podman pod rm --all --force --time 0 >/dev/null 2>&1
  umount -R "$tmp/root" "$tmp/run" 2>/dev/null
  rm -rf "$tmp"
}
trap end EXIT

# want PATTERN STATUS WHAT ARG...: podman ARG... has to end with STATUS and print PATTERN.
want() {
  local pattern=$1 status=$2 what=$3 out got
  shift 3
  out=$(podman "$@" 2>&1 </dev/null)
  got=$?
  if [[ $got == "$status" && $out =~ $pattern ]]; then
    echo "ok     podman: $what"
  else
    printf 'FAILED podman: %s: podman %s: status %s (want %s), output (want %s):\n%s\n' "$what" "$*" "$got" "$status" "$pattern" "$out"
    failed=1
  fi
}

mkdir -p "$tmp/rootfs/bin"
cp "$(command -v busybox)" "$tmp/rootfs/bin/busybox"
for applet in sh sleep echo cat id pwd tty true ls; do ln -s busybox "$tmp/rootfs/bin/$applet"; done
rootfs=(--network none --rootfs "$tmp/rootfs")

want '^ahoy$' 0 "run" run --rm "${rootfs[@]}" /bin/echo ahoy
want '' 7 "exit status" run --rm "${rootfs[@]}" /bin/sh -c 'exit 7'
want '' 143 "ended by a signal" run --rm "${rootfs[@]}" /bin/sh -c '/bin/sh -c "kill -TERM \$\$"; exit $?'
want 'not found' 127 "no such program" run --rm "${rootfs[@]}" /no/such/program
want 'is a directory|[Pp]ermission denied' 126 "program that cannot be executed" run --rm "${rootfs[@]}" /bin
want '/dev/pts/0' 0 "run with a terminal" run --rm -t "${rootfs[@]}" /bin/tty
want '^12$' 0 "user" run --rm --user 12 "${rootfs[@]}" /bin/id -u

want '^[0-9a-f]{64}$' 0 "detach" run -d --name one "${rootfs[@]}" /bin/sh -c 'echo to the log; exec sleep 1000'
want 'to the log' 0 "logs" logs one
want 'running' 0 "state" inspect -f '{{.State.Status}}' one
# shellcheck disable=SC2016 # for the container's shell
want '^hello 12:34 /bin$' 0 "exec with environment, user, directory" \
  exec -e WORD=hello -u 12:34 -w /bin one /bin/sh -c 'echo $WORD $(id -u):$(id -g) $(pwd)'
want '' 9 "exec's exit status" exec one /bin/sh -c 'exit 9'
want 'not found' 127 "exec of no such program" exec one /no/such/program
want '/dev/pts/' 0 "exec with a terminal" exec -t one /bin/tty
want '' 0 "exec detached" exec -d one /bin/sleep 999
want 'sleep 999' 0 "top" top one
want '' 0 "pause" pause one
want 'paused' 0 "state of a paused one" inspect -f '{{.State.Status}}' one
want '' 0 "unpause" unpause one
want '' 0 "update" update --memory 64m --cpus 0.5 one
want '[0-9]+\.[0-9]+%' 0 "stats" stats --no-stream one
want '' 0 "checkpoint" container checkpoint one
want 'exited' 0 "state of a saved one" inspect -f '{{.State.Status}}' one
want '' 0 "restore" container restore one
want 'back' 0 "exec in a restored one" exec one /bin/echo back
want '' 0 "stop" stop -t 0 one
want 'exited 137' 0 "state of a stopped one" inspect -f '{{.State.Status}} {{.State.ExitCode}}' one
want '' 0 "start again" start one
want '' 0 "remove" rm -f -t 0 one

want '' 0 "pod" pod create --name crew --network none
for name in fore aft; do
  want '' 0 "pod: container $name" run -d --pod crew --name "$name" --rootfs "$tmp/rootfs" /bin/sleep 1000
done
want 'Running.*3' 0 "pod: with its own three" pod ps
want '' 0 "pod: stop" pod stop -t 0 crew
want '' 0 "pod: start" pod start crew
want '' 0 "pod: exec" exec fore /bin/true
want '' 0 "pod: remove" pod rm -f -t 0 crew

exit "$failed"
