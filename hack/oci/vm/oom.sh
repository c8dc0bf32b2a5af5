# shellcheck shell=sh
# Out of memory, in the guest: systemd has removed the scope, which counted the kill, before the shim
# looks, which is stopped meanwhile. See cri.sh, which comes before.

# told POD SCRIPT SIGNAL: the reason that is told of a container's end when the shim gets this signal after it.
told() {
  # shellcheck disable=SC2016
  id=$(run "$1" local.test/busybox:1 "until [ -e /go ]; do sleep 0.1; done; $2")
  init=$(field "$id" pid)
  scope=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$init/cgroup")
  shim=$(sed -n 's/^PPid:\t//p' "/proc/$init/status")
  kill -STOP "$shim"
  touch "/proc/$init/root/go"
  while [ -d "$scope" ]; do :; done
  kill "-$3" "$shim"
  until [ "$(field "$id" state)" = CONTAINER_EXITED ]; do :; done
  field "$id" reason
}
hog="dd if=/dev/zero of=/dev/null bs=200M"
want "the scope is gone: out of memory" OOMKilled told one "exec $hog" CONT
want "the scope is gone: a child was, and the program ended of it" OOMKilled told two "$hog; exit 5" CONT
want "the scope is gone: it ended by itself" Error told three "exit 3" CONT
want "the scope is gone, and the shim: out of memory" OOMKilled told four "exec $hog" KILL
crictl rmp -f -a >/dev/null
want "the pods are removed" 0 echo $?
