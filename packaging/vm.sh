#!/usr/bin/env bash
# The Debian package under systemd, in a virtual machine: installed, started when the socket answers, reloaded, killed,
# restarted with pods that go on; upstream's kubelet on it, whose node is Ready and runs a static pod; removed. VM_RUN is as
# in hack/oci/vm.sh. Needs `make deb` before, crictl, kubectl and upstream's kubelet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${VM_RUN:-} ]]; then
  echo "test-deb-vm: VM_RUN is not set; name a command that runs another in a virtual machine, see hack/oci/vm.sh" >&2
  exit 1
fi
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT
packages=(out/deb/coracle_*.deb out/deb/coracle-kube_*.deb)
((${#packages[@]} == 2)) || {
  echo "test-deb-vm: out/deb has other packages, too: ${packages[*]}" >&2
  exit 1
}
cp "${packages[@]}" bin/tools/crictl bin/tools/kubectl bin/peers/bin/kubelet packaging/crictl.yaml "$share"
cp "$(command -v busybox)" "$share/busybox"
cp packaging/vm-guest.sh "$share/run"
"$VM_RUN" --share "$share:/b" -t 900 -- sh /b/run
