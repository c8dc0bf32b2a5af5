#!/bin/sh
# In the guest: coracled with systemd's cgroups, driven by crictl. Ends with the number of checks that failed.
# shellcheck source=hack/oci/vm/want.sh
. /b/want.sh
BIN=/var/tmp/bin
cp -r /b/bin $BIN || exit # whence programs start faster
cd /var/tmp || exit
# In a directory of PATH, as an installed one; its libraries are those it came with.
printf '#!/bin/sh\nLD_LIBRARY_PATH=/b/criu exec /b/criu/criu "$@"\n' >/usr/local/bin/criu
chmod +x /usr/local/bin/criu

printf '[cgroup]\ndriver = "systemd"\n[runtime]\nrestore = true\nrestore_bases = ["local.test/busybox:1", "local.test/empty:1"]\n' >coracled.toml
"$BIN"/coracled --config coracled.toml >coracled.log 2>&1 &
until [ -S /run/coracle/coracle.sock ]; do kill -0 $! || { cat coracled.log; exit 1; }; done
crictl() { "$BIN"/tools/crictl -c /dev/null -r unix:///run/coracle/coracle.sock -t 600s "$@"; }

mkdir -p root/bin
cp /b/busybox root/bin/
for a in sh sleep dd; do ln -s busybox root/bin/$a; done
tar -C root -c . | "$BIN"/coracle image import local.test/busybox:1 >/dev/null

# run POD IMAGE SCRIPT: a pod of that name with a container of that image, started; says its id. It may
# have 16 MB.
run() {
  cat >pod.json <<END
{"metadata":{"name":"$1","namespace":"test","uid":"$1"},"log_directory":"/var/tmp/logs/$1","linux":{"cgroup_parent":"test.slice"}}
END
  cat >ctr.json <<END
{"metadata":{"name":"main"},"image":{"image":"$2"},"log_path":"log","command":["/bin/sh","-c","$3"],
 "linux":{"resources":{"memory_limit_in_bytes":16777216}}}
END
  crictl run --no-pull ctr.json pod.json
}
# field CONTAINER NAME: the first of that name that inspect says.
field() { crictl inspect "$1" | sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},*\$/\1/p" | head -n 1; }

# shellcheck source=hack/oci/vm/socketcall.sh
. /b/socketcall.sh
# shellcheck source=hack/oci/vm/restore.sh
. /b/restore.sh
# shellcheck source=hack/oci/vm/oom.sh
. /b/oom.sh
[ $failed = 0 ] || tail -n 30 coracled.log
"$BIN"/coracled purge --all --config coracled.toml
echo "cri: $checks checks, $failed failed"
exit $failed
