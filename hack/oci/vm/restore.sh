# shellcheck shell=sh
# CRIU through the CRI, in the guest: crictl saves a container that counts, and one that is made from an
# image of what was saved counts on. See cri.sh, which comes before.

want "criu knows this kernel" 0 sh -c 'criu check >/dev/null 2>&1; echo $?'
# shellcheck disable=SC2016
count='i=0; while :; do i=$((i+1)); echo $i >>/count; echo $i; sleep 0.1; done'
# said POD: what its container has said; beyond POD LINES waits until that is more.
said() { sed 's/.* //' "logs/$1/log" 2>/dev/null; }
beyond() { until [ "$(said "$1" | wc -l)" -gt "$2" ]; do :; done; }

first=$(run first local.test/busybox:1 "$count")
beyond first 2
want "save" "$first" crictl checkpoint --export=/var/tmp/saved.tar "$first"
beyond first "$(said first | wc -l)"
crictl rmp -f -a >/dev/null
want "the saved one goes on, and is removed" 0 echo $?
saved=$(tar -xOf saved.tar rootfs-diff.tar | tar -xO count | tail -n 1)
want "an image of it" 0 sh -c "'$BIN'/coracle image import local.test/saved:1 -f saved.tar >/dev/null 2>&1; echo \$?"
id=$(run second local.test/saved:1 "$count")
want "restore" 0 echo $?
if [ -n "$id" ]; then
  beyond second 2
  # It was frozen before or after it said what it had written down.
  want "it counts on from $saved" yes sh -c "case $(said second | head -n 1) in $saved | $((saved + 1))) echo yes ;; esac"
  want "its file is that of the moment" $((saved + 1)) crictl exec "$id" /bin/busybox sed -n $((saved + 1))p /count
  want "systemd made its cgroup" 1 grep -c "^0::/test.slice/.*\.scope" "/proc/$(field "$id" pid)/cgroup"
  want "it can be saved, too" "$id" crictl checkpoint --export=/var/tmp/saved2.tar "$id"
fi

# An image without the program: CRIU has made the process when it sees that.
mkdir -p empty/etc saved
tar -C empty -c . | "$BIN"/coracle image import local.test/empty:1 >/dev/null
tar -C saved -xf saved.tar
sed -i 's|"rootfsImage": "[^"]*"|"rootfsImage": "local.test/empty:1"|' saved/config.dump
want "an image that fails" 0 sh -c "tar -C saved -c . | '$BIN'/coracle image import local.test/wrong:1 >/dev/null 2>&1; echo \$?"
run third local.test/wrong:1 "$count" >wrong.log 2>&1
want "it says why" 1 sh -c "grep -c 'msg=.*CRIU says in restore.log: Error (criu/.*open file bin/busybox on restore' wrong.log"
crictl rmp -f -a >/dev/null
want "the pods are removed" 0 echo $?
want "nothing stays of them" "" sh -c 'find /sys/fs/cgroup/test.slice -name "*.scope" 2>/dev/null'
