#!/usr/bin/env bash
# Tests in a virtual machine with systemd and only the unified cgroup hierarchy:
#   engine, lc    the suite of an engine
#   snapshot      quotas, and an older kernel's overlayfs
#   storage       project quotas of ext4 and xfs for volumes and snapshots, and NFS volumes of the kernel's server
#   cgroups       pods' limits in the kubelet's cgroups
#   wireguard     encrypted packets between nodes, which are namespaces
#   cli           the command line where it needs systemd, AppArmor and CRIU
#   cri           coracled with systemd's cgroups: socket families, CRIU and out of memory, by crictl
#   critest       coracled with systemd's cgroups: the CRI validation suite
#   kubelet       the kubelet's end-to-end tests
#   integration   kills, crashes and upgrades, and the tests of networks, with SCTP through Services
#   crashmatrix   a sample of the crash matrix
#   oomkill       coracled, shim and keeper killed for memory, under systemd
#   reboot        the machine reset in the middle of each operation; VM_RUN has to take --out DIR, too
#   clock         a node whose clock is an hour off, of a cluster on this machine; VM_RUN has to take --net, too, with which the
#                 guest reaches the networks that VM_RUN reaches (needs root)
# each in a guest of its own. Names as arguments choose; none is all. VM_MD is the page of
# docs/cri-conformance.md, if critest's part of it is to be written.
# VM_RUN is a command that runs another as root in a throwaway guest:
#   $VM_RUN --share DIR:PATH -t SECONDS -- COMMAND...
# shows DIR read-only at PATH in the guest and ends with the command's status. The limit,
# VM_TIMEOUT, only ends what hangs: emulated, on a busy machine, a part may take half an hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
go=${GO:-go}
if [[ -z ${VM_RUN:-} ]]; then
  echo "test-vm: VM_RUN is not set; name a command that runs another in a virtual machine, see hack/oci/vm.sh" >&2
  exit 1
fi
(($#)) || set -- engine lc snapshot storage cgroups wireguard cli cri critest kubelet integration crashmatrix oomkill reboot clock
out=bin/vm
mkdir -p "$out"
# The command line, with its companion.
CGO_ENABLED=0 "$go" build -ldflags '-s -w' -o "$out/coracle-oci" ./cmd/coracle-oci
CGO_ENABLED=1 "$go" build -tags seccomp,no_grpc,osusergo,netgo -ldflags '-s -w -linkmode external -extldflags -static' \
  -o "$out/coracle-oci-libcontainer" ./cmd/coracle-oci-libcontainer 2>&1 | { grep -v "statically linked" || true; }
for p in engine lc; do
  CGO_ENABLED=1 "$go" test -c -tags seccomp,osusergo,netgo -ldflags '-s -w -linkmode external -extldflags -static' \
    -o "$out/$p.test" "./runtime/$p" 2>&1 | { grep -v "statically linked" || true; }
done
CGO_ENABLED=0 "$go" test -c -tags vm -o "$out/snapshot.test" ./snapshot
CGO_ENABLED=0 "$go" -C cluster test -c -tags vm,netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/cgroups.test" ./kubelet/cgroups
CGO_ENABLED=0 "$go" -C cluster test -c -tags netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/kubelet.test" ./kubelet/e2e
CGO_ENABLED=0 "$go" -C cluster test -c -tags netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/wireguard.test" ./overlay/wireguard
CGO_ENABLED=0 "$go" -C cluster test -c -tags netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/overlay.test" ./overlay
CGO_ENABLED=0 "$go" -C cluster build -ldflags '-s -w' -o "$PWD/$out/guest" ./kubelet/e2e/guest
cp "$(command -v busybox)" "$out/busybox"
cp hack/oci/vm/*.sh "$out/"
# criu, with libraries that the guest may not have.
hack/oci/build.sh criu
criu=$(PATH=$PWD/bin/oci:$PATH command -v criu)
rm -rf "$out/criu"
mkdir "$out/criu"
ldd "$criu" | awk '$2 == "=>" { print $3 }' | xargs cp -L -t "$out/criu" "$criu"
if [[ " $* " == *" storage "* ]]; then
  for p in controllers/localpath kubelet/volume; do
    CGO_ENABLED=0 "$go" -C cluster test -c -tags vm,netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/$(basename "$p").test" "./$p"
  done
fi
# What storage needs, and the guest may not have: Debian 12's packages, with the libraries that they need. Elsewhere libraries
# have other names: the guest has to have the programs.
if [[ " $* " == *" storage "* && ! -e $out/debs/complete ]]; then
  rm -rf "$out/debs"
  mkdir "$out/debs"
  # shellcheck source=/dev/null
  if [[ $(source /etc/os-release && echo "${ID:-} ${VERSION_ID:-}") == "debian 12" ]]; then
    (
      cd "$out/debs"
      apt-get -qq -o APT::Sandbox::User=root download xfsprogs libinih1 liburcu8 nfs-common nfs-kernel-server libtirpc3 libtirpc-common libnsl2 \
        libevent-core-2.1-7 libsqlite3-0 libwrap0 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libssl3
    ) || { echo "test-vm: storage: packages cannot be downloaded: run apt-get update" >&2; exit 1; }
    touch "$out/debs/complete"
  else
    echo "test-vm: storage: this is not Debian 12, whose packages it knows: the guest has to have xfsprogs, nfs-common and nfs-kernel-server" >&2
  fi
fi
# What coracled needs, laid out as bin is.
if [[ " $* " =~ " "(cri|critest|kubelet|integration|crashmatrix|oomkill|reboot)" " ]]; then
  make --no-print-directory build-faults testbins tools shards
  rm -rf "${out:?}/bin"
  mkdir -p "$out/bin/tools" "$out/bin/test"
  cp bin/{coracled,containerd-shim-coracle-v1,coracle,coracle-lazy} "$out/bin/"
  cp -r bin/{faults,previous} "$out/bin/"
  cp -r bin/tools/{crictl,critest,registry,busybox,cni} "$out/bin/tools/"
  cp -r bin/test/{attack,critest,web,pause,setuid,integration.test,plugin} "$out/bin/test/"
  CGO_ENABLED=0 "$go" test -c -o "$out/bin/test/network.test" ./network
  CGO_ENABLED=0 "$go" -C cluster test -c -tags netgo,osusergo -o "$PWD/$out/bin/test/rules.test" ./proxy/rules
  CGO_ENABLED=0 "$go" test -c -o "$out/bin/test/crashmatrix.test" ./integration/crashmatrix
  CGO_ENABLED=0 "$go" test -c -tags vm -o "$out/bin/test/reserve.test" ./pod/reserve
  cp packaging/coracled.service "$out/"
fi

# reboot: one guest per step. The disk is a file of the host. The step that resets the guest fails,
# because the guest ends, so it first writes the file "reached".
reboot() {
  local disk operation delay status
  disk=$(mktemp -d)
  guest() { "$VM_RUN" --share "$PWD/$out:/b" --out "$disk" -t "${VM_TIMEOUT:-3600}" -- sh /b/reboot.sh "$@"; }
  guest setup || return
  for operation in import remove-image run create start exec stop remove; do
    for delay in 0.1 1 3; do
      rm -f "$disk/reached"
      status=0
      guest reset "$operation" "$delay" >"$disk/said" 2>&1 || status=$?
      if [[ ! -e $disk/reached ]] || ((status == 0)); then
        cat "$disk/said"
        echo "reboot: $operation was not reset while it ran" >&2
        return 1
      fi
      guest check || { echo "reboot: after a reset $delay s into $operation" >&2; return 1; }
      echo "reboot: $operation, after $delay s: ok"
    done
  done
  rm -rf "$disk"
}

# clock: the test runs here, and starts the guest.
clock() {
  make --no-print-directory build testbins tools &&
    mkdir -p "$out/clock" &&
    CGO_ENABLED=0 "$go" -C cluster test -c -tags nodes,vm,netgo,osusergo -ldflags '-s -w' -o "$PWD/$out/clock/nodes.test" ./integration/nodes &&
    CORACLE_BIN=$PWD/bin VM_RUN=$VM_RUN "$out/clock/nodes.test" -test.v -test.timeout "${VM_TIMEOUT:-3600}s" -test.run 'TestWrongClock$'
}

bad=0
for part in "$@"; do
  case $part in
    reboot) reboot || bad=1; continue ;;
    clock) clock || bad=1; continue ;;
  esac
  "$VM_RUN" --share "$PWD/$out:/b" -t "${VM_TIMEOUT:-3600}" -- sh /b/guest.sh "$part" | tee "$out/$part.log" || {
    echo "test-vm: $part ended with status $?" >&2
    bad=1
  }
done
if [[ -n ${VM_MD:-} && " $* " == *" critest "* ]]; then
  bin/test/critest -from "$out/critest.log" -md "$VM_MD"
fi
exit "$bad"
