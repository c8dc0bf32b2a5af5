package lc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// SignalAll implements runtime.Container.
func (c *container) SignalAll(_ context.Context, sig syscall.Signal) error {
	if err := c.rec.signalPids(sig); err != nil {
		return c.fail("signal all processes of", err)
	}
	return nil
}

// signalPids sends sig to all processes of the cgroup. ErrNotRunning if there is
// none. Processes are found by cgroup, not by pid namespace, because a
// container may share another's.
func (r *record) signalPids(sig syscall.Signal) error {
	if sig == unix.SIGKILL && r.cgroupKill() {
		return nil
	}
	sent := map[int]bool{}
	// A process may fork while the list is read. The child of a killed parent
	// shows up in the next round; rounds end when nothing new does.
	for {
		pids, err := r.pids()
		if err != nil {
			return err
		}
		found := false
		for _, pid := range pids {
			if sent[pid] {
				continue
			}
			sent[pid], found = true, true
			if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("send signal %d to process %d: %w", int(sig), pid, err)
			}
		}
		if !found {
			break
		}
	}
	if sig == unix.SIGKILL {
		r.thaw()
	}
	if len(sent) == 0 {
		return runtime.ErrNotRunning
	}
	return nil
}

// cgroupKill kills in one step where the kernel (5.14) and the hierarchy
// (unified) can, also the v2 side of a hybrid machine. It is not used unless all
// processes are in that hierarchy.
func (r *record) cgroupKill() bool {
	path := r.CgroupPaths[""]
	if path == "" || r.listPath() != path {
		return false
	}
	pids, err := r.pids()
	if err != nil || len(pids) == 0 {
		return false
	}
	return os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0) == nil
}

// killAll kills every process of the container and waits until they are gone.
func (r *record) killAll(ctx context.Context) error {
	for {
		pids, err := r.pids()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		watch := openPidfds(pids)
		err = r.signalPids(unix.SIGKILL)
		if err == nil || errors.Is(err, runtime.ErrNotRunning) {
			err = awaitExits(ctx, watch)
		}
		for _, fd := range watch {
			_ = unix.Close(fd)
		}
		if err != nil {
			return err
		}
	}
}

// openPidfds skips processes that are gone already.
func openPidfds(pids []int) []int {
	fds := make([]int, 0, len(pids))
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}
