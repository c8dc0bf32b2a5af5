package main

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot"
)

// recursiveReadonly says whether the kernel has mount_setattr(2), since 5.12. The
// call itself cannot succeed.
func recursiveReadonly() bool {
	err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{})
	return !errors.Is(err, unix.ENOSYS)
}

// userNamespaces tries whether a root file system can show the ids of a user namespace, for
// which the kernel, the file system and the driver of snapshots all have to be able.
func (n *node) userNamespaces(ctx context.Context, driver snapshot.DriverName) bool {
	store, err := n.layers.Of(driver)
	if err == nil {
		err = store.ProbeUsers(ctx)
	}
	if err != nil {
		n.log.Info("user namespaces for pods are not available", "snapshotter", string(driver), "why", err)
	}
	return err == nil
}
