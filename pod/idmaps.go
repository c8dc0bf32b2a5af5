package pod

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// validateIDMaps checks the mappings of what: the ranges of a user namespace, as
// user_namespaces(7) has them.
func validateIDMaps(what string, maps IDMaps) error {
	if (len(maps.UIDs) == 0) != (len(maps.GIDs) == 0) {
		return errdefs.Errorf(errdefs.ErrInvalid, "%s maps %d ranges of user ids and %d of group ids; both or none are needed", what,
			len(maps.UIDs),
			len(maps.GIDs))
	}
	for _, list := range [][]IDMap{maps.UIDs, maps.GIDs} {
		for _, m := range list {
			if m.Length == 0 || uint64(m.Host)+uint64(m.Length) > math.MaxUint32 || uint64(m.Container)+uint64(m.Length) > math.MaxUint32 {
				return errdefs.Errorf(errdefs.ErrInvalid, "%s maps ids %d to %d, %d of them: not a range of ids", what, m.Container, m.Host, m.Length)
			}
		}
	}
	return nil
}

// fitsPod wants a container's user namespace to be its pod's: all containers share one, so
// that they can share all else.
func (n *Namespaces) fitsPod(p *Namespaces) error {
	own := p.User == NamespacePod
	switch {
	case n.User == "":
		return nil
	case (n.User == NamespacePod) != own:
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace mode %q in a pod with %q", n.User, cmp.Or(p.User, NamespaceNode))
	case own && (n.Users.UIDs[0] != p.Users.UIDs[0] || n.Users.GIDs[0] != p.Users.GIDs[0]):
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace with other ids than the pod's")
	}
	return nil
}

// rootOf is the host's name for the root of a user namespace.
func rootOf(users IDMaps) (uid, gid int) {
	return int(users.UIDs[0].Host), int(users.GIDs[0].Host)
}

func sysMaps(maps []IDMap) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(maps))
	for i, m := range maps {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.Container), HostID: int(m.Host), Size: int(m.Length)}
	}
	return out
}

// asRootOf runs f as the user namespace's root as far as files are concerned: a root file
// system that shows its ids cannot hold files of the host's root, who is no one there.
func asRootOf(users IDMaps, f func() error) error {
	if len(users.UIDs) == 0 {
		return f()
	}
	uid, gid := rootOf(users)
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
