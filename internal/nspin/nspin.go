// Package nspin makes a pod's network, IPC and UTS namespaces, and a user namespace that they
// belong to if the pod has one, and pins them with bind mounts, so that they live without any
// process in them (namespaces(7)).
//
// # Life cycle
//
//	nspin.Root(dir)                      once, at start
//	var maker nspin.Maker
//	set, err := maker.Create(ctx, dir+"/"+podID, spec)
//	…                                    processes enter set.Net, set.IPC, set.UTS
//	nspin.Remove(ctx, dir + "/" + podID) idempotent
//
// Create configures a namespace completely before it pins it, so a directory in
// which every wanted pin is there is a finished set: Create returns it as it is.
// Anything less is what a crash left, and is replaced.
//
// # Mounts do not multiply
//
// A pin is a mount, and a copy of it in another mount namespace keeps the pod's
// namespace alive after Remove. On most systems the state directory lies on a
// shared mount (systemd shares /), so the copies come by propagation and by
// containers that bind-mount /run recursively. Root stops both: it makes the
// directory a mount of its own that is unbindable, which neither propagates nor
// is copied by a recursive bind (mount_namespaces(7)). For the same reason nothing
// but mount points belongs below it: a file there cannot be bind-mounted into a
// container.
package nspin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
	"github.com/coracle-project/coracle/internal/procsys"
)

// Kinds of error, for errors.Is.
var (
	// ErrInvalid is a spec that cannot be applied: a sysctl that is unknown, not
	// namespaced, of a namespace that the spec leaves to the host, or a value
	// that the kernel refuses; a host name that is too long.
	ErrInvalid = errors.New("invalid namespace spec")
)

// Spec says which namespaces a pod has of its own, and how they begin.
type Spec struct {
	Net, IPC, UTS bool
	Hostname      string            // set in the UTS namespace, if UTS
	Sysctls       map[string]string // dotted names; each must belong to a namespace of the spec
	// Users are the ids of a user namespace of the pod's own, to which the others belong.
	Users Users
}

// Set holds the paths of pinned namespaces; empty where the host's is used.
type Set struct {
	Net string `json:"net,omitempty"`
	IPC string `json:"ipc,omitempty"`
	UTS string `json:"uts,omitempty"`
	// User is the user namespace.
	User string `json:"user,omitempty"`
}

// maxHostname is the kernel's __NEW_UTS_LEN.
const maxHostname = 64

// Maker makes namespaces. Its zero value is ready for use.
type Maker struct {
	sysctls procsys.Instances
}

// Close lets go of what Create keeps for the next pod.
func (m *Maker) Close() { m.sysctls.Close() }

// Create makes the namespaces of spec and pins them as the files net, ipc and uts
// in dir, which it makes if missing. If they are all pinned there already, it
// returns them. On error nothing is left in dir. It is done within milliseconds,
// so ctx is looked at only before it starts.
func (m *Maker) Create(ctx context.Context, dir string, spec Spec) (Set, error) {
	if err := ctx.Err(); err != nil {
		return Set{}, err
	}
	writes, err := spec.check()
	if err != nil {
		return Set{}, err
	}
	set, done := existing(dir, spec)
	if done {
		return set, nil
	}
	if err := Remove(ctx, dir); err != nil {
		return Set{}, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Set{}, fmt.Errorf("namespace directory: %w", err)
	}
	create := func() error { return ownthread.Run(func() error { return m.build(ctx, set, spec, writes) }) }
	if !spec.Users.none() {
		create = func() error {
			return spec.Users.withNamespaces(spec.flags(), func(pid int) error {
				return ownthread.Run(func() error { return m.buildIn(ctx, pid, set, spec, writes) })
			})
		}
	}
	if err := create(); err != nil {
		return Set{}, errors.Join(err, Remove(context.WithoutCancel(ctx), dir))
	}
	return set, nil
}

// paths returns where the namespaces of spec are pinned below dir.
func (s Spec) paths(dir string) Set {
	var set Set
	if s.Net {
		set.Net = filepath.Join(dir, "net")
	}
	if s.IPC {
		set.IPC = filepath.Join(dir, "ipc")
	}
	if s.UTS {
		set.UTS = filepath.Join(dir, "uts")
	}
	if !s.Users.none() {
		set.User = filepath.Join(dir, "user")
	}
	return set
}

// flags are clone(2)'s for the namespaces of the spec but that of users.
func (s Spec) flags() (flags uintptr) {
	if s.Net {
		flags |= unix.CLONE_NEWNET
	}
	if s.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if s.UTS {
		flags |= unix.CLONE_NEWUTS
	}
	return flags
}

// each calls f with the kernel's name and the pin of every namespace in the set.
func (s Set) each(f func(kind, pin string) error) error {
	for _, n := range [...]struct{ kind, pin string }{{"net", s.Net}, {"ipc", s.IPC}, {"uts", s.UTS}, {"user", s.User}} {
		if n.pin == "" {
			continue
		}
		if err := f(n.kind, n.pin); err != nil {
			return err
		}
	}
	return nil
}

func (s Spec) check() ([]sysctlWrite, error) {
	if s.UTS && len(s.Hostname) > maxHostname {
		return nil, fmt.Errorf("%w: host name of %d bytes is longer than %d", ErrInvalid, len(s.Hostname), maxHostname)
	}
	if err := s.Users.check(); err != nil {
		return nil, err
	}
	return s.sysctlWrites()
}

// existing reports whether all of spec is pinned in dir.
func existing(dir string, spec Spec) (Set, bool) {
	set := spec.paths(dir)
	err := set.each(func(_, pin string) error {
		if !pinned(pin) {
			return unix.ENOENT
		}
		return nil
	})
	return set, err == nil
}

// pinned reports whether a namespace is mounted on path.
func pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// build runs on the throwaway thread.
func (m *Maker) build(ctx context.Context, set Set, spec Spec, writes []sysctlWrite) error {
	if err := unix.Unshare(int(spec.flags())); err != nil {
		return fmt.Errorf("unshare namespaces: %w", err)
	}
	if err := m.configure(ctx, spec, writes); err != nil {
		return err
	}
	return pinAll(ctx, set, "/proc/thread-self/ns/")
}

// buildIn is build for namespaces that a process is in already.
func (m *Maker) buildIn(ctx context.Context, pid int, set Set, spec Spec, writes []sysctlWrite) error {
	if err := enter(pid, set); err != nil {
		return err
	}
	if err := m.configure(ctx, spec, writes); err != nil {
		return err
	}
	return pinAll(ctx, set, nsPath(pid, ""))
}

// configure sets up the namespaces that the thread is in.
func (m *Maker) configure(ctx context.Context, spec Spec, writes []sysctlWrite) error {
	if spec.UTS && spec.Hostname != "" {
		if err := unix.Sethostname([]byte(spec.Hostname)); err != nil {
			return fmt.Errorf("set host name %q: %w", spec.Hostname, err)
		}
	}
	if spec.Net {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	if len(writes) > 0 {
		if err := m.sysctls.Use(func(dir string) error { return writeAll(spec, writes, dir) }); err != nil {
			return err
		}
	}
	return faultCreateConfigured.At(ctx)
}

func writeAll(spec Spec, writes []sysctlWrite, dir string) error {
	for _, w := range writes {
		do := func() error { return w.do(dir) }
		var err error
		if w.ipc() {
			err = spec.Users.asRoot(do)
		} else {
			err = do()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pinAll pins the namespaces whose files are in a directory of /proc.
func pinAll(ctx context.Context, set Set, from string) error {
	return set.each(func(kind, pin string) error {
		if err := pinOne(from+kind, pin); err != nil {
			return err
		}
		return faultCreatePinned.At(ctx)
	})
}

// pinOne mounts a namespace on a new file.
func pinOne(from, pin string) error {
	fd, err := unix.Open(pin, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o444)
	if err != nil {
		return fmt.Errorf("pin %s: %w", pin, err)
	}
	_ = unix.Close(fd)
	if err := unix.Mount(from, pin, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin %s: bind mount: %w", pin, err)
	}
	return nil
}

// Remove unpins what is pinned in dir, and removes dir if nothing else is in it.
// It succeeds if there is nothing. The kernel ends the namespaces once no process
// is in them.
func Remove(ctx context.Context, dir string) error {
	var errs []error
	_ = everything.paths(dir).each(func(_, pin string) error {
		there, err := unpin(pin)
		if there && err == nil {
			err = faultRemoveUnpinned.At(ctx)
		}
		errs = append(errs, err)
		return nil
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	switch err := unix.Rmdir(dir); err {
	case nil, unix.ENOENT, unix.ENOTEMPTY, unix.EEXIST:
		return nil
	default:
		return fmt.Errorf("remove %s: %w", dir, err)
	}
}

// everything is a spec of all kinds of namespaces.
var everything = Spec{Net: true, IPC: true, UTS: true, Users: Users{UIDs: []syscall.SysProcIDMap{{}}}}

// unpin removes every mount on the file, and the file. It reports whether the file existed.
func unpin(pin string) (there bool, err error) {
	for {
		err := unix.Unlink(pin)
		if err == nil || err == unix.ENOENT {
			return err == nil, nil
		}
		if err != unix.EBUSY {
			return true, fmt.Errorf("unpin %s: %w", pin, err)
		}
		// A mount point of this mount namespace cannot be unlinked.
		if err := unix.Unmount(pin, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return true, fmt.Errorf("unpin %s: unmount: %w", pin, err)
		}
	}
}
