#!/bin/sh
# Runs in the guest. The kernel's out-of-memory killer kills coracled, the shim and the keeper in
# turn, under systemd, while a container writes numbered lines. The exit status is the number of
# failed checks.
# shellcheck disable=SC2317 # functions that want calls
# shellcheck source=hack/oci/vm/want.sh
. /b/want.sh
BIN=/usr/local/bin
cp /b/bin/coracled /b/bin/containerd-shim-coracle-v1 /b/bin/coracle /b/bin/tools/crictl $BIN || exit
cp /b/coracled.service /etc/systemd/system/ || exit
cd /var/tmp || exit
systemctl daemon-reload
systemctl start coracled || { journalctl -u coracled --no-pager | tail -n 30; exit 1; }
crictl() { $BIN/crictl -c /dev/null -r unix:///run/coracle/coracle.sock -t 600s "$@"; }

mkdir -p root/bin
cp /b/busybox root/bin/
for a in sh sleep echo; do ln -sf busybox root/bin/$a; done
tar -C root -c . | $BIN/coracle image import local.test/busybox:1 >/dev/null
cat >pod.json <<END
{"metadata":{"name":"oom","namespace":"test","uid":"oom"},"log_directory":"/var/tmp/logs"}
END
cat >ctr.json <<END
{"metadata":{"name":"writer"},"image":{"image":"local.test/busybox:1"},"log_path":"log",
 "command":["/bin/sh","-c","trap 'exit 7' TERM; i=1; while :; do echo line \$i; i=\$((i+1)); sleep 0.02; done"]}
END
id=$(crictl run --no-pull ctr.json pod.json) || exit
init=$(crictl inspect "$id" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)

# named PATTERN: prints the pids of processes whose command line matches.
named() { pgrep -f "$1"; }
# oom PATTERN: makes the process the kernel's preferred victim, and triggers its out-of-memory
# killer.
oom() {
  pid=$(named "$1" | head -n 1)
  [ "$pid" ] || { echo "no process matches $1"; return; }
  echo 1000 >"/proc/$pid/oom_score_adj"
  before=$(dmesg | grep -c 'Out of memory: Killed process')
  while [ -d "/proc/$pid" ] && [ "$(sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$pid/status")" != Z ]; do
    echo f >/proc/sysrq-trigger
    sleep 0.1
  done
  # Check that this kill ended the process.
  [ "$(dmesg | grep -c 'Out of memory: Killed process')" -gt "$before" ] || { echo "no process was killed"; return; }
  dmesg | grep -q "Killed process $pid " || { echo "a process other than $pid was killed"; return; }
  until new=$(named "$1" | head -n 1) && [ "$new" ] && [ "$new" != "$pid" ] && crictl version >/dev/null 2>&1; do sleep 0.1; done
  echo killed
}
# check VICTIM: the kernel kills it, and the container goes on.
check() {
  victim=$1
  want "out of memory: $victim" killed oom "$victim"
  want "$victim: the container is as it was" CONTAINER_RUNNING sh -c \
    "crictl -c /dev/null -r unix:///run/coracle/coracle.sock inspect $id | sed -n 's/^ *\"state\": \"\(.*\)\",*\$/\1/p' | head -n 1"
  want "$victim: exec" yes crictl exec -s "$id" echo yes
  want "$victim: the process is the same" 0 sh -c "kill -0 $init; echo \$?"
}
check '^/usr/local/bin/coracled'
check 'containerd-shim-coracle-v1 serve'
crictl stop -t 60 "$id" >/dev/null
# The keeper's child by then: before Linux 6.15 no one else can tell.
want "the exit status" 7 sh -c \
  "crictl -c /dev/null -r unix:///run/coracle/coracle.sock inspect $id | sed -n 's/^ *\"exitCode\": \([0-9]*\),*\$/\1/p' | head -n 1"
lines=$(grep -c . logs/log)
want "lines, each once" "$(seq -f 'line %.0f' "$lines" | md5sum)" sh -c "sed 's/^[^ ]* stdout F //' logs/log | md5sum"
want "many lines" yes sh -c "[ $lines -gt 50 ] && echo yes"
crictl rmp -f -a >/dev/null
id=$(crictl run --no-pull ctr.json pod.json) || exit
init=$(crictl inspect "$id" | sed -n 's/^ *"pid": \([0-9]*\),*$/\1/p' | head -n 1)
check '^coracle-keeper'
[ $failed = 0 ] || journalctl -u coracled --no-pager | tail -n 40
crictl rmp -f -a >/dev/null
systemctl stop coracled
$BIN/coracled purge --all
echo "oomkill: $checks checks, $failed failed"
exit $failed
