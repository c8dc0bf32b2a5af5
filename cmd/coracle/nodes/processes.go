package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// lock takes the lock of Dir: Exec shares it until its program runs. Dir may be missing.
func (w Network) lock(how int) (release func(), err error) {
	dir, err := os.Open(w.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(dir.Fd()), how)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if !errors.Is(err, unix.EINTR) {
			_ = dir.Close()
			return nil, fmt.Errorf("lock %s: %w", w.Dir, err)
		}
	}
}

// Close keeps programs from coming to the nodes by Exec until open is called, or the nodes are
// removed.
func (w Network) Close() (open func(), err error) { return w.lock(unix.LOCK_EX) }

// Inside returns the processes that share the network of one of the nodes.
func (w Network) Inside() ([]int, error) {
	type id struct{ dev, ino uint64 }
	ours := map[id]bool{}
	for n := 2; n <= Most; n++ {
		var s unix.Stat_t
		if path := w.file(n, "net"); pinned(path) && unix.Stat(path, &s) == nil {
			ours[id{s.Dev, s.Ino}] = true
		}
	}
	if len(ours) == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var inside []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		var s unix.Stat_t // of a process that is ending there is none
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns", "net"), &s) == nil && ours[id{s.Dev, s.Ino}] {
			inside = append(inside, pid)
		}
	}
	return inside, nil
}
