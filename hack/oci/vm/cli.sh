#!/bin/sh
# In the guest: the command line where it needs systemd, AppArmor and CRIU. Ends with the number of
# checks that failed.
# shellcheck source=hack/oci/vm/want.sh
. /b/want.sh
OCI=/b/coracle-oci BOX=/var/tmp/box
mkdir -p $BOX/rootfs/bin $BOX/rootfs/proc $BOX/rootfs/dev $BOX/rootfs/sys
cp /b/busybox $BOX/rootfs/bin/
for a in sh id cat sleep true; do ln -s busybox $BOX/rootfs/bin/$a; done
# shellcheck source=hack/oci/vm/systemd.sh
. /b/systemd.sh
# shellcheck source=hack/oci/vm/apparmor.sh
. /b/apparmor.sh
# shellcheck source=hack/oci/vm/checkpoint.sh
. /b/checkpoint.sh
echo "coracle-oci: $checks checks, $failed failed"
exit $failed
