# shellcheck shell=sh
# CRIU, in the guest: containers of both engines, in scopes of systemd's and not, are saved,
# restored, and go on. See systemd.sh, which comes before.

cd "$BOX" || exit 1
chown -R 0:0 "$BOX"
export LD_LIBRARY_PATH=/b/criu PATH="/b/criu:$PATH"
want "criu knows this kernel" 0 sh -c 'criu check >/dev/null 2>&1; echo $?'

# beyond COUNT: waits until the container has counted further.
beyond() { until [ "$(tail -n 1 rootfs/count 2>/dev/null || echo 0)" -gt "$1" ]; do :; done; }
for engine in coracle libcontainer; do
  for manager in "" --systemd-cgroup; do
    what="$engine $manager" image=/var/tmp/image-$engine$manager
    with() { "$OCI" --engine $engine $manager "$@" </dev/null; }
    configure
    sed -i 's/"readonly": true/"readonly": false/; s|"sleep", "1000"|"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >> /count; sleep 0.1; done"|' config.json
    rm -f rootfs/count
    # A stream that is a file of the host's cannot be saved.
    with run -d counter >/dev/null 2>&1
    want "$what: run" 0 echo $?
    beyond 2
    want "$what: save" "" with checkpoint --image-path "$image" --work-path "$image" counter
    want "$what: it is gone" "" with list -q
    saved=$(tail -n 1 rootfs/count)
    with restore -d --image-path "$image" --work-path "$image" counter >/dev/null 2>&1
    want "$what: restore" 0 echo $?
    beyond "$saved"
    want "$what: it goes on where it was" $((saved + 1)) sed -n $((saved + 1))p rootfs/count
    want "$what: exec" back with exec counter sh -c 'echo back'
    want "$what: remove" "" with delete --force counter
  done
done
