// Package idmaps works with the id maps of user namespaces.
package idmaps

import (
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/podconfig"
)

// Root is the host's name for the root of a user namespace.
func Root(users podconfig.IDMaps) (uid, gid int) {
	return int(users.UIDs[0].Host), int(users.GIDs[0].Host)
}

// Sys are maps as package syscall has them.
func Sys(maps []podconfig.IDMap) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(maps))
	for i, m := range maps {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.Container), HostID: int(m.Host), Size: int(m.Length)}
	}
	return out
}

// AsRoot runs f as the user namespace's root as far as files are concerned: a root file
// system that shows its ids cannot hold files of the host's root, who is no one there.
func AsRoot(users podconfig.IDMaps, f func() error) error {
	if len(users.UIDs) == 0 {
		return f()
	}
	uid, gid := Root(users)
	runtime.LockOSThread() // setfsuid(2) is the thread's
	defer runtime.UnlockOSThread()
	for _, change := range []struct {
		set func(int) (int, error)
		id  int
	}{{unix.SetfsgidRetGid, gid}, {unix.SetfsuidRetUid, uid}} {
		before, err := change.set(change.id)
		if err != nil {
			return fmt.Errorf("become root of the user namespace: %w", err)
		}
		defer func() { _, _ = change.set(before) }()
	}
	return f()
}
