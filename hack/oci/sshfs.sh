#!/usr/bin/env bash
# sshfs.sh COMMAND...: runs COMMAND where `sshfs rootless@localhost: DIR` works, as runc's mounts_sshfs.bats wants: in a mount
# namespace with a user of that name and root's key for it, and a network namespace with a server on its loopback.
set -euo pipefail
if [[ ${1:-} != --inside ]]; then
  exec unshare --net --mount --propagation private "$(readlink -f "${BASH_SOURCE[0]}")" --inside "$@"
fi
shift
dir=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$dir"' EXIT
chmod 755 "$dir"
mkdir -m 755 "$dir/home"
mkdir -m 700 "$dir/home/.ssh" "$dir/ssh"
ssh-keygen -q -t ed25519 -N '' -f "$dir/ssh/id_ed25519"
dropbearkey -t ed25519 -f "$dir/hostkey" >/dev/null 2>&1
cp "$dir/ssh/id_ed25519.pub" "$dir/home/.ssh/authorized_keys"
chown -R 4711:4711 "$dir/home"
{ grep -v '^rootless:' /etc/passwd; echo "rootless:x:4711:4711::$dir/home:/bin/sh"; } >"$dir/passwd"
{ grep -v '^rootless:' /etc/shadow; echo 'rootless:*:19000::::::'; } >"$dir/shadow"
mount --bind "$dir/passwd" /etc/passwd
mount --bind "$dir/shadow" /etc/shadow
mkdir -p /root/.ssh
mount --bind "$dir/ssh" /root/.ssh
mount --make-rshared /
ip link set lo up
dropbear -F -E -s -r "$dir/hostkey" -P "$dir/pid" -p 127.0.0.1:22 2>"$dir/server.log" &
server=$!
until ss -Hltn 'sport = :22' | grep -q . || ! kill -0 "$server"; do sleep 0.05; done

# Without this, the tests fall back to a tmpfs and pass without sshfs.
mkdir "$dir/try"
sshfs -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o PasswordAuthentication=no rootless@localhost: "$dir/try" || {
  cat "$dir/server.log" >&2
  echo "sshfs.sh: sshfs does not work here" >&2
  exit 1
}
[[ $(stat -f -c %T "$dir/try") == fuse* ]] || { echo "sshfs.sh: no sshfs is mounted" >&2; exit 1; }
umount "$dir/try"
"$@"
