# shellcheck shell=sh
# Sockets that no network namespace contains, in the guest, whose kernel has AF_ALG and AppArmor: see cri.sh, which comes before.

# attacks NAME SECCOMP APPARMOR: the results of integration/payload/attack.c in a container with these profiles.
attacks() {
  cat >pod.json <<END
{"metadata":{"name":"$1","namespace":"test","uid":"$1"},"log_directory":"/var/tmp/logs/$1","linux":{"cgroup_parent":"test.slice"}}
END
  cat >ctr.json <<END
{"metadata":{"name":"main"},"image":{"image":"local.test/busybox:1"},"log_path":"log","command":["/attack","socketcall"],
 "mounts":[{"container_path":"/attack","host_path":"$BIN/test/attack","readonly":true}],
 "linux":{"security_context":{"seccomp":{"profile_type":$2},"apparmor":{"profile_type":$3}}}}
END
  crictl run --no-pull ctr.json pod.json >/dev/null
  end=$(($(date +%s) + 120))
  until grep -q 'done$' "/var/tmp/logs/$1/log"; do
    [ "$(date +%s)" -lt "$end" ] || { echo "no result in two minutes:"; cat "/var/tmp/logs/$1/log"; return; }
  done
  sed 's/^[^ ]* stdout F //' "/var/tmp/logs/$1/log" | tr '\n' ' '
}

modprobe -a af_alg vsock vsock_loopback 2>/dev/null
want "without profiles all sockets work" \
  "socketcall-unix ok socket-unix ok socketcall-inet ok socket-inet ok socketcall-alg ok socket-alg ok socketcall-vsock ok socket-vsock ok done " attacks free 1 1
want "under seccomp's default profile" \
  "socketcall-unix ENOSYS socket-unix ok socketcall-inet ENOSYS socket-inet ok socketcall-alg ENOSYS socket-alg EPERM socketcall-vsock ENOSYS socket-vsock EPERM done " attacks seccomp 0 1
want "under AppArmor's default profile alone" \
  "socketcall-unix ok socket-unix ok socketcall-inet ok socket-inet ok socketcall-alg EACCES socket-alg EACCES socketcall-vsock EACCES socket-vsock EACCES done " attacks apparmor 1 0
