package nspin

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Users are the ids of a user namespace (user_namespaces(7)). The zero value is the
// host's own.
type Users struct {
	UIDs, GIDs []syscall.SysProcIDMap
}

func (u Users) none() bool { return len(u.UIDs) == 0 && len(u.GIDs) == 0 }

// root is the host's name for the namespace's root.
func (u Users) root() (int, error) {
	for _, m := range u.UIDs {
		if m.ContainerID == 0 {
			return m.HostID, nil
		}
	}
	return 0, fmt.Errorf("%w: user namespace without an id for its root", ErrInvalid)
}

func (u Users) check() error {
	if u.none() {
		return nil
	}
	if len(u.UIDs) == 0 || len(u.GIDs) == 0 {
		return fmt.Errorf("%w: user namespace needs ids of users and of groups", ErrInvalid)
	}
	_, err := u.root()
	return err
}

// withNamespaces runs f while there are namespaces of the kinds in flags that belong to a
// new user namespace; pid is of a process in all of them. A thread of ours cannot make them:
// only a process of one thread enters a new user namespace. This one is stopped before its
// first instruction (PTRACE_TRACEME), and killed in the end.
func (u Users) withNamespaces(flags uintptr, f func(pid int) error) error {
	runtime.LockOSThread() // the tracer is a thread, and Pdeathsig too means it
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"coracled-namespaces"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  flags | unix.CLONE_NEWUSER,
			UidMappings: u.UIDs, GidMappings: u.GIDs,
			// Else no one in the pod could ever drop a group.
			GidMappingsEnableSetgroups: true,
			Ptrace:                     true,
			Pdeathsig:                  unix.SIGKILL,
		},
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: make a user namespace with ids %v and %v: %w", ErrInvalid, u.UIDs, u.GIDs, err)
	}
	if err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() {
		_ = p.Kill()
		_, _ = p.Wait()
	}()
	return f(p.Pid)
}

// enter puts the calling thread into a process's namespaces of the kinds in set.
func enter(pid int, set Set) error {
	return set.each(func(kind, _ string) error {
		if kind == "user" {
			return nil
		}
		path := nsPath(pid, kind)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("enter %s: %w", path, err)
		}
		return nil
	})
}

func nsPath(pid int, kind string) string { return "/proc/" + strconv.Itoa(pid) + "/ns/" + kind }

// asRoot runs f with the calling thread's effective id that of the user namespace's root, to
// whom sysctls of an IPC namespace belong; the host's root may not write them.
func (u Users) asRoot(f func() error) error {
	if u.none() {
		return f()
	}
	id, err := u.root()
	if err != nil {
		return err
	}
	if err := seteuid(id); err != nil {
		return err
	}
	return errors.Join(f(), seteuid(0))
}

// seteuid changes one thread, unlike the libraries' call of this name.
func seteuid(id int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
		return fmt.Errorf("become user %d: %w", id, errno)
	}
	return nil
}
