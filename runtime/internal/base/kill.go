package base

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// SignalAll implements runtime.Container.
func (c *Container) SignalAll(ctx context.Context, sig syscall.Signal) error {
	if err := c.Rec.SignalPids(ctx, sig); err != nil {
		return c.Fail("signal all processes of", err)
	}
	return nil
}

// SignalPids sends sig to all processes of the cgroup. ErrNotRunning if there is
// none. Processes are found by cgroup, not by pid namespace, because a
// container may share another's.
func (r *Record) SignalPids(ctx context.Context, sig syscall.Signal) (err error) {
	if sig != unix.SIGKILL {
		return r.signalEach(sig)
	}
	if r.cgroupKill() {
		return nil
	}
	thaw, err := r.halt(ctx)
	if err != nil {
		return err
	}
	if thaw == nil {
		thaw = r.thaw // if it is paused
	}
	defer func() { err = errors.Join(err, thaw()) }() // on v1 a frozen process does not act on signals
	if err := r.signalEach(sig); err != nil {
		return err
	}
	return faultKillSent.At(ctx)
}

func (r *Record) signalEach(sig syscall.Signal) error {
	const most = 256 // open descriptors
	sent, held := map[int]bool{}, map[int]int{}
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}()
	// Without a freezer a process may fork while the list is read. The child of a killed
	// parent shows up in the next round; rounds end when nothing new does.
	//
	// A pid is signalled one round after its pidfd was opened: if the pid is still listed then, the
	// pidfd's process belongs to the container. Without the pidfd, the pid could have been reused
	// by another process.
	for {
		pids, err := r.pids()
		if err != nil {
			return err
		}
		found := false
		maps.DeleteFunc(held, func(pid, fd int) bool { return !slices.Contains(pids, pid) && unix.Close(fd) == nil })
		for _, pid := range pids {
			if sent[pid] {
				continue
			}
			found = true
			fd, listed := held[pid]
			if !listed && len(held) == most {
				continue // in a later round
			}
			if !listed {
				if fd, err = unix.PidfdOpen(pid, 0); err == nil {
					held[pid] = fd
				}
				if err == nil || errors.Is(err, unix.ESRCH) {
					continue
				}
				return fmt.Errorf("send signal %d to process %d: pidfd_open: %w", int(sig), pid, err)
			}
			err := unix.PidfdSendSignal(fd, sig, nil, 0)
			_ = unix.Close(fd)
			delete(held, pid)
			sent[pid] = !errors.Is(err, unix.ESRCH) // ESRCH: another process has the pid now
			if err != nil && sent[pid] {
				return fmt.Errorf("send signal %d to process %d: %w", int(sig), pid, err)
			}
		}
		if !found {
			break
		}
	}
	if len(sent) == 0 {
		return runtime.ErrNotRunning
	}
	return nil
}

// cgroupKill kills in one step where the kernel (5.14) and the hierarchy
// (unified) can, also the v2 side of a hybrid machine. It is not used unless all
// processes are in that hierarchy.
func (r *Record) cgroupKill() bool {
	path := r.CgroupPaths[""]
	if path == "" || r.listPath() != path {
		return false
	}
	if pids, me, err := r.pidsAndMe(); err != nil || len(pids) == 0 || me {
		return false
	}
	return os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0) == nil
}

// killAll kills every process of the container and waits until they are gone.
func (r *Record) killAll(ctx context.Context) error {
	for {
		pids, err := r.pids()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		watch := OpenPidfds(pids)
		err = r.SignalPids(ctx, unix.SIGKILL)
		if err == nil || errors.Is(err, runtime.ErrNotRunning) {
			err = AwaitExits(ctx, watch)
		}
		for _, fd := range watch {
			_ = unix.Close(fd)
		}
		if err != nil {
			return err
		}
	}
}

// OpenPidfds skips processes that are gone already.
func OpenPidfds(pids []int) []int {
	fds := make([]int, 0, len(pids))
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}
