# shellcheck shell=sh
# systemd's cgroups, in the guest: scopes of root's and of a user's own systemd. $OCI is the
# runtime, $BOX a bundle of busybox without config.json. Sourced by cli.sh.

configure() { # a container that sleeps
  rm -f config.json
  "$OCI" spec
  sed -i 's/"terminal": true/"terminal": false/; s/"sh"$/"sleep", "1000"/' config.json
}

cd "$BOX" || exit 1
oci() { "$OCI" --systemd-cgroup "$@"; }
pid() { oci state "$1" | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
show() { systemctl show "$@" | sort | tr '\n' ' '; }

configure
sed -i 's/"linux": {/"annotations": {"org.systemd.property.TimeoutStopSec": "uint64 7", "org.systemd.property.CollectMode": "'"'inactive-or-failed'"'"}, "linux": {"cgroupsPath": "system.slice:boat:one",/; s/"resources": {/"resources": {"pids": {"limit": 50}, "memory": {"limit": 67108864}, "unified": {"memory.high": "50000000"},/' config.json
oci run -d one </dev/null >/dev/null 2>err
want "a scope is made" "0 " echo "$? $(cat err)"
want "its process is in it" 0::/system.slice/boat-one.scope cat "/proc/$(pid one)/cgroup"
want "limits and annotations are properties" "CollectMode=inactive-or-failed MemoryHigh=50000000 MemoryMax=67108864 Slice=system.slice TasksMax=50 TimeoutStopUSec=7s " \
  show boat-one.scope -p TasksMax -p MemoryMax -p MemoryHigh -p CollectMode -p TimeoutStopUSec -p Slice
want "exec is in it, too" 0::/ oci exec one cat /proc/self/cgroup
oci update --pids-limit 60 --cpu-quota 50000 one
want "update changes properties" "CPUQuotaPerSecUSec=500ms MemoryMax=67108864 TasksMax=60 " show boat-one.scope -p TasksMax -p MemoryMax -p CPUQuotaPerSecUSec
want "update changes files" 60 cat /sys/fs/cgroup/system.slice/boat-one.scope/pids.max
oci pause one
want "pause" "1" cat /sys/fs/cgroup/system.slice/boat-one.scope/cgroup.freeze
oci resume one
oci kill one KILL
while oci kill one 0 2>/dev/null; do :; done
oci delete one
want "delete removes the scope" inactive systemctl is-active boat-one.scope

configure
oci run -d two </dev/null >/dev/null 2>&1
want "without a path: a scope in system.slice" 0::/system.slice/coracle-two.scope cat "/proc/$(pid two)/cgroup"
oci delete --force two
configure
sed -i 's/"linux": {/"linux": {"cgroupsPath": "\/not\/systemd",/' config.json
want "a path of another form" "coracle-oci: create container three: invalid OCI spec: linux.cgroupsPath \"/not/systemd\" is not of the form SLICE:PREFIX:NAME, which --systemd-cgroup needs, such as system.slice:coracle:three" \
  oci run three

loginctl enable-linger tester
systemctl --wait is-system-running --user -M tester@ >/dev/null 2>&1
cat >/var/tmp/user.sh <<'END'
cd "$BOX" || exit 1
$OCI spec --rootless
sed -i 's/"terminal": true/"terminal": false/; s/"sh"$/"sleep", "1000"/' config.json
OCI="$OCI --systemd-cgroup"
scope=/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/user.slice/coracle-mine.scope
$OCI run -d mine </dev/null >out 2>&1 || cat out
ls -d $scope
$OCI exec mine sh -c 'id -u; cat /proc/self/cgroup'
wc -l <$scope/cgroup.procs
$OCI update --pids-limit 60 mine
systemctl --user show coracle-mine.scope -p TasksMax
$OCI kill mine KILL
while $OCI kill mine 0 2>/dev/null; do :; done
$OCI delete mine
systemctl --user is-active coracle-mine.scope
END
rm -f config.json
chown -R tester "$BOX"
as_tester() {
  setpriv --reuid 1000 --regid 1000 --init-groups env XDG_RUNTIME_DIR=/run/user/1000 HOME=/home/tester USER=tester OCI="$OCI" BOX="$BOX" sh "$@"
}
want "a user's own systemd" "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/user.slice/coracle-mine.scope
0
0::/
1
TasksMax=60
inactive" as_tester /var/tmp/user.sh
