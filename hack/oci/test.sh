#!/usr/bin/env bash
# test.sh: coracle-oci compared with runc. Builds what it needs (build.sh), then
#   compare    one and the same scripts on both runtimes
#   validate   the validation programs of opencontainers/runtime-tools on both
#   podman     podman over coracle-oci
#   bats       runc's own tests, on coracle-oci and on runc; only if named, it takes half an hour
# each with coracle-oci on its own engine and on libcontainer.
# Names as arguments choose; none is all. Needs root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

((EUID == 0)) || {
  echo "oci: these tests make containers and need root" >&2
  exit 1
}
go=${GO:-go}
bin=$PWD/bin/oci
export PATH=$bin:$PATH # criu
install -m 0755 hack/oci/coracle-oci-lc.sh "$bin/coracle-oci-lc"

# Nothing here may disturb the machine: mounts of containers without a mount namespace,
# which the programs have, stay in this one, and the runtimes' state is not the machine's.
# Mounts are shared in it, as on a machine with systemd.
isolated() {
  # shellcheck disable=SC2016 # for the inner shell
  unshare --mount --propagation private sh -c \
    'mount --make-rshared / && mount --make-private -t tmpfs run /run && exec "$@"' isolated "$@"
}

compare() {
  hack/oci/build.sh runc criu
  CORACLE_OCI_BIN=$bin "$go" test -tags oci -count=1 ./hack/oci/compare
}

validate() {
  hack/oci/build.sh runc programs
  "$go" build -o "$bin/validate" ./hack/oci/validate
  local runtime bad=0
  for runtime in coracle-oci coracle-oci-lc; do
    isolated "$bin/validate" -programs "$bin/programs" -runtime "$bin/$runtime" -reference "$bin/runc" ${RUN:+-run "$RUN"} || bad=1
  done
  return "$bad"
}

podman() {
  hack/oci/build.sh podman criu
  local runtime bad=0
  for runtime in coracle-oci coracle-oci-lc; do
    echo "podman over $runtime"
    RUNTIME=$bin/$runtime hack/oci/podman.sh || bad=1
  done
  return "$bad"
}

bats() {
  hack/oci/build.sh runc bats
  isolated hack/oci/bats.sh
}

case $# in
  1) ;;
  0) set -- compare validate podman ;&
  *)
    bad=0
    for name in "$@"; do
      hack/oci/test.sh "$name" || bad=1
    done
    exit "$bad"
    ;;
esac

case $1 in
  compare) compare ;;
  validate) validate ;;
  podman) podman ;;
  bats) bats ;;
  *)
    echo "oci: $1: no such test" >&2
    exit 2
    ;;
esac
