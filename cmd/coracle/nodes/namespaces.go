package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

// pinned says whether a namespace is mounted at path.
func pinned(path string) bool {
	var s unix.Statfs_t
	return unix.Statfs(path, &s) == nil && s.Type == unix.NSFS_MAGIC
}

// pin makes the namespaces of a node and mounts them in Dir, the mount namespace last: a node that
// has it is whole. One that is not has no processes, and is made from the beginning.
func (w Network) pin(n int, hidden []string) error {
	if w.Has(n) {
		return nil
	}
	err := w.pinFrom(n, hidden, nil)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	// A mount namespace can be mounted only in one with a lower number. Linux 6.18 gives numbers from
	// one range for each processor, so a later namespace can have a lower number, unless it is made on
	// the processor that ours was made on.
	var allowed unix.CPUSet
	if aerr := unix.SchedGetaffinity(0, &allowed); aerr != nil {
		return errors.Join(err, aerr)
	}
	for cpu := range len(allowed) * 64 {
		if !allowed.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err = w.pinFrom(n, hidden, &one); !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return err
}

// pinFrom makes the namespaces on one processor, or on any.
func (w Network) pinFrom(n int, hidden []string, cpu *unix.CPUSet) error {
	if err := w.prepare(n); err != nil {
		return err
	}
	made, pinned := make(chan int), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- ownthread.Run(func() error {
			if cpu != nil { // for the rest of the thread's life
				if err := unix.SchedSetaffinity(0, cpu); err != nil {
					return fmt.Errorf("choose a processor: %w", err)
				}
			}
			if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("unshare: %w", err)
			}
			if err := furnish(hidden); err != nil {
				return err
			}
			if err := useResolved(w.Dir); err != nil {
				return err
			}
			made <- unix.Gettid()
			<-pinned
			return nil
		})
	}()
	select {
	case err := <-ended:
		return err
	case tid := <-made:
		var err error
		for _, kind := range []string{"net", "mnt"} {
			from := filepath.Join("/proc/self/task", strconv.Itoa(tid), "ns", kind)
			if err = unix.Mount(from, w.file(n, kind), "", unix.MS_BIND, ""); err != nil {
				err = fmt.Errorf("mount %s on %s: %w", from, w.file(n, kind), err)
				break
			}
		}
		close(pinned)
		return errors.Join(err, <-ended)
	}
}

// prepare makes the files that the namespaces of a node are mounted on. A mount namespace cannot be
// mounted where mounts are passed on to others, so Dir is a private mount.
func (w Network) prepare(n int) error {
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return err
	}
	dir, err := filepath.EvalSymlinks(w.Dir) // mounts are known by their real paths
	if err != nil {
		return err
	}
	mounted, err := mountinfo.Mounted(dir)
	if err != nil {
		return fmt.Errorf("is %s mounted: %w", dir, err)
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mount %s private: %w", dir, err)
	}
	for _, kind := range []string{"mnt", "net"} {
		path := w.file(n, kind)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if pinned(path) {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", path, err)
			}
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// unpin lets all namespaces go, and removes Dir.
func (w Network) unpin() error {
	dir, err := filepath.EvalSymlinks(w.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unmount(func(at string) bool { return at == dir || strings.HasPrefix(at, dir+"/") }); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unmount detaches the mounts that chosen wants, innermost first.
func unmount(chosen func(mountpoint string) bool) error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !chosen(m.Mountpoint), false })
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) {
		if err := ignore(unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), unix.EINVAL, unix.ENOENT); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// furnish makes the thread's new namespaces those of a machine: nothing that is mounted there is
// seen outside, mounts are passed on within, as kubelets need it, and loopback is up.
func furnish(hidden []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, dir := range hidden {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return err
		}
		if err := unmount(func(at string) bool { return strings.HasPrefix(at, real+"/") }); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("link lo: %w", err)
	}
	return nil
}

// ErrNotMade is that a node has no namespaces.
var ErrNotMade = errors.New("it has no namespaces")

// Exec replaces this process by a program on node n, whose host name there, and that of what it
// starts, is name. It returns only if that fails.
func (w Network) Exec(n int, name, program string, args, env []string) error {
	// Shared until the program runs: by then Inside shows the process.
	release, err := w.lock(unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer release()
	if !w.Has(n) {
		return ErrNotMade
	}
	// The thread goes on with the process, so it does not matter what it has changed.
	runtime.LockOSThread()
	var spaces []*os.File
	for _, kind := range []string{"net", "mnt"} {
		f, err := os.Open(w.file(n, kind))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		spaces = append(spaces, f)
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	// Threads share their root directory, and one that does cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host name %s: %w", name, err)
	}
	for i, kind := range []int{unix.CLONE_NEWNET, unix.CLONE_NEWNS} {
		if err := unix.Setns(int(spaces[i].Fd()), kind); err != nil {
			return fmt.Errorf("enter the namespaces of node %d: %w", n, err)
		}
	}
	_ = unix.Chdir(dir) // relative paths mean what they did; without the directory there are none
	if err := unix.Exec(program, args, env); err != nil {
		return fmt.Errorf("execute %s: %w", program, err)
	}
	return nil
}
