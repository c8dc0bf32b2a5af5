#!/bin/sh
# Runs in the guest: one boot of the reset test, see vm.sh. /out has a disk that outlives the guest.
#   reboot.sh setup           makes the disk, with an image on it
#   reboot.sh reset OPERATION resets the machine in the middle of an operation
#   reboot.sh check           checks the state after a reset
BIN=/b/bin
disk=/out/disk
mkdir -p /d /run/coracle
if [ "$1" = setup ]; then
  truncate -s 1G $disk && mkfs.ext4 -q $disk || exit
fi
mount -o loop $disk /d || exit

mkdir -p /var/tmp/root/bin
cp /b/busybox /var/tmp/root/bin/
for a in sh sleep echo; do ln -sf busybox /var/tmp/root/bin/$a; done
head -c 8000000 /dev/urandom >/var/tmp/root/data
cd /var/tmp || exit
$BIN/coracled --root /d/coracle >/var/tmp/coracled.log 2>&1 &
until [ -S /run/coracle/coracle.sock ]; do kill -0 $! || { cat coracled.log; exit 1; }; done
crictl() { $BIN/tools/crictl -c /dev/null -r unix:///run/coracle/coracle.sock -t 600s "$@"; }
import() { tar -C root -c . | $BIN/coracle image import "$1" >/dev/null; }

cat >pod.json <<END
{"metadata":{"name":"reset","namespace":"test","uid":"reset"},"log_directory":"/var/tmp/logs"}
END
cat >ctr.json <<END
{"metadata":{"name":"main"},"image":{"image":"local.test/busybox:1"},"log_path":"log","command":["/bin/sh","-c","echo up; sleep 3600"]}
END

case $1 in
  setup)
    import local.test/busybox:1 || exit
    sync
    ;;
  reset)
    # Prepare what the operation needs.
    case $2 in
      create | start | exec | stop | remove) pod=$(crictl runp pod.json) || exit ;;
    esac
    case $2 in
      start | exec | stop | remove) ctr=$(crictl create --no-pull "$pod" ctr.json pod.json) || exit ;;
    esac
    case $2 in
      exec | stop | remove) crictl start "$ctr" >/dev/null || exit ;;
    esac
    # Repeat the operation, so that the reset always hits one in progress.
    echo "in the middle of $2" >/out/reached
    case $2 in
      import) n=0 && while :; do n=$((n + 1)) && import "local.test/more:$n"; done & ;;
      remove-image) n=0 && while :; do n=$((n + 1)) && import "local.test/more:$n" && crictl rmi "local.test/more:$n"; done >/dev/null & ;;
      run) while :; do p=$(crictl runp pod.json) && crictl rmp -f "$p" >/dev/null; done & ;;
      create) while :; do c=$(crictl create --no-pull "$pod" ctr.json pod.json) && crictl rm "$c" >/dev/null; done & ;;
      start) crictl start "$ctr" & ;;
      exec) while :; do crictl exec -s "$ctr" echo x; done >/dev/null & ;;
      stop) crictl stop -t 0 "$ctr" & ;;
      remove) crictl rmp -f "$pod" & ;;
    esac
    sleep "$3"
    echo b >/proc/sysrq-trigger
    sleep 60 # the machine is gone before
    exit 1
    ;;
  check)
    failed=0
    bad() { failed=1 && echo "FAIL: $*" && tail -n 20 coracled.log; }
    [ "$(crictl pods -q)$(crictl ps -a -q)" = "" ] || bad "pods from before the reset are listed"
    crictl inspecti local.test/busybox:1 >/dev/null || bad "the image from before the reset is gone"
    $BIN/coracle image verify >verify.log 2>&1 || { cat verify.log && bad "images are damaged"; }
    id=$(crictl run --no-pull ctr.json pod.json) || bad "no pod can be run"
    [ "$(crictl exec -s "$id" echo yes)" = yes ] || bad "exec"
    crictl rmp -f -a >/dev/null || bad "the pod is not removed"
    exit $failed
    ;;
esac
kill %1 2>/dev/null
$BIN/coracled purge --root /d/coracle >/dev/null
umount /d
