package driver

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
	"github.com/coracle-project/coracle/snapshot/diff"
)

// IDMap shows a range of the ids on disk, which are a container's own, as others on the
// host: the kernel's user namespaces, uid_map in user_namespaces(7).
type IDMap struct {
	Container uint32 `json:"container"`
	Host      uint32 `json:"host"`
	Length    uint32 `json:"length"`
}

// Users are the ids of a user namespace. The zero value is the host's own.
type Users struct {
	UIDs []IDMap `json:"uids,omitempty"`
	GIDs []IDMap `json:"gids,omitempty"`
}

// MaxIDMaps is the kernel's limit of a uid_map (UID_GID_MAP_MAX_EXTENTS).
const MaxIDMaps = 340

// None says that the ids are the host's own.
func (u Users) None() bool { return len(u.UIDs) == 0 && len(u.GIDs) == 0 }

// Equal says whether they are the same ranges in the same order.
func (u Users) Equal(o Users) bool {
	return slices.Equal(u.UIDs, o.UIDs) && slices.Equal(u.GIDs, o.GIDs)
}

// Check refuses ranges that no user namespace can have.
func (u Users) Check() error {
	if u.None() {
		return nil
	}
	for what, maps := range map[string][]IDMap{"user": u.UIDs, "group": u.GIDs} {
		if len(maps) == 0 || len(maps) > MaxIDMaps {
			return fmt.Errorf("%w: %d ranges of %s ids, want 1 to %d", diff.ErrInvalid, len(maps), what, MaxIDMaps)
		}
		for i, m := range maps {
			if m.Length == 0 || m.Length > math.MaxUint32-m.Host || m.Length > math.MaxUint32-m.Container {
				return fmt.Errorf("%w: range of %s ids %d:%d:%d is empty or ends beyond 2³²", diff.ErrInvalid, what, m.Container, m.Host, m.Length)
			}
			for _, o := range maps[:i] {
				if overlap(m.Container, o.Container, m.Length, o.Length) || overlap(m.Host, o.Host, m.Length, o.Length) {
					return fmt.Errorf("%w: ranges of %s ids %d:%d:%d and %d:%d:%d overlap", diff.ErrInvalid, what, m.Container, m.Host, m.Length, o.Container,
						o.Host, o.Length)
				}
			}
		}
	}
	return nil
}

func overlap(a, b, lengthA, lengthB uint32) bool {
	return uint64(a) < uint64(b)+uint64(lengthB) && uint64(b) < uint64(a)+uint64(lengthA)
}

// Open makes a user namespace with these ids; nil if there are none. A mount takes its
// ids from a namespace, and a namespace comes with a process: this one is stopped
// before its first instruction (PTRACE_TRACEME), and killed.
func (u Users) Open() (*os.File, error) {
	if u.None() {
		return nil, nil
	}
	runtime.LockOSThread() // the tracer is a thread, and Pdeathsig too means it
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"coracled-users"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: sysMaps(u.UIDs),
			GidMappings: sysMaps(u.GIDs),
			Ptrace:      true,
			Pdeathsig:   unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	f, err := os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
	_ = p.Kill()
	_, _ = p.Wait()
	if err != nil {
		return nil, fmt.Errorf("open a user namespace: %w", err)
	}
	return f, nil
}

func sysMaps(maps []IDMap) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(maps))
	for i, m := range maps {
		out[i] = syscall.SysProcIDMap{ContainerID: int(m.Container), HostID: int(m.Host), Size: int(m.Length)}
	}
	return out
}

// mappedClone returns a detached copy of the mount tree at path, its ids shown as those
// of the user namespace; nil shows them as they are.
func mappedClone(path string, users *os.File) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open tree %s: %w", path, err)
	}
	if users == nil {
		return fd, nil
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%w: map the ids of %s, which is on %s: %w", diff.ErrUnsupported, path, FSType(path), err)
	}
	return fd, nil
}

// whereMapped runs f on a thread with a mount namespace of its own, where the tree at
// path shows the ids of the user namespace. Overlayfs maps no ids itself, but keeps to
// those of the mounts that its directories are named in (Linux 5.19), and those mounts
// have to be in the namespace of the one who names them. A namespace that ends with the
// thread leaves nothing behind, whatever happens, and shows the mounts to no one.
//
// An overlay writes as the user who mounted it, with an id that the mounts must know: f runs
// as the host's names for the container's root.
func whereMapped(path string, users *os.File, as Users, f func() error) error {
	return ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		fd, err := mappedClone(path, users)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("attach %s with mapped ids: %w", path, err)
		}
		if err := actAs(as); err != nil {
			return err
		}
		return f()
	})
}

// actAs makes this thread's files belong to the host's ids of a user namespace's root. It
// keeps the capabilities that such a change takes away.
func actAs(u Users) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("get capabilities: %w", err)
	}
	// Both return the old id and no error; a mount that does not know the id will say so.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, uintptr(rootOf(u.GIDs)), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, uintptr(rootOf(u.UIDs)), 0, 0)
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}

// rootOf is the host's id for 0, or for the first that there is.
func rootOf(maps []IDMap) uint32 {
	for _, m := range maps {
		if m.Container == 0 {
			return m.Host
		}
	}
	return maps[0].Host
}
