package cgstat

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/cgroupmode"
)

// Processes is what can only be learned by looking at every process.
type Processes struct {
	Count, Threads uint64
	// Descriptors are open files, Sockets those of them that are sockets.
	Descriptors, Sockets uint64
	// States counts threads.
	States States
	// OpenFiles is the soft limit of open files of the first process; 0 if that is gone.
	OpenFiles uint64
}

// States are the states of threads as cAdvisor divides them, but for those that wait for
// a device: the kernel tells them apart from other uninterruptible ones only over taskstats.
type States struct{ Running, Sleeping, Stopped, Uninterruptible uint64 }

// ReadProcesses looks at all processes of the cgroup at path and its descendants, the first of
// which is first. One that ends meanwhile counts as far as it was seen. ErrNone if there is no such
// cgroup, ctx's error if that ends first: processes may have millions of open files.
func ReadProcesses(ctx context.Context, path string, first int) (Processes, error) {
	dir := filepath.Join(mountPoint, path)
	if !cgroupmode.Unified() {
		// The freezer has every process of a container, whatever it did to the others.
		dir = filepath.Join(mountPoint, "freezer", path)
	}
	if !isDir(dir) {
		return Processes{}, fmt.Errorf("processes of cgroup %s: %w", path, ErrNone)
	}
	pids, err := cgroups.GetAllPids(dir)
	if err != nil {
		return Processes{}, fmt.Errorf("processes of cgroup %s: %w", path, gone(err))
	}
	p := Processes{OpenFiles: openFiles(first)}
	for _, pid := range pids {
		p.add(ctx, filepath.Join("/proc", strconv.Itoa(pid)))
	}
	if err := ctx.Err(); err != nil {
		return Processes{}, fmt.Errorf("processes of cgroup %s: %w", path, err)
	}
	return p, nil
}

func (p *Processes) add(ctx context.Context, dir string) {
	p.Count++
	// Links alone: opening and asking each would take several calls per descriptor.
	eachName(ctx, filepath.Join(dir, "fd"), func(fd string) {
		p.Descriptors++
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
			p.Sockets++
		}
	})
	eachName(ctx, filepath.Join(dir, "task"), func(task string) {
		p.Threads++
		if stat, err := os.ReadFile(filepath.Join(task, "stat")); err == nil {
			p.States.add(stat)
		}
	})
}

// eachName calls f with the paths in a directory until ctx ends, without having all of them in
// memory at any time.
func eachName(ctx context.Context, dir string, f func(path string)) {
	d, err := os.Open(dir)
	if err != nil {
		return // it has ended
	}
	defer d.Close()
	const some = 256
	for ctx.Err() == nil {
		names, err := d.Readdirnames(some)
		for _, name := range names {
			f(filepath.Join(dir, name))
		}
		if err != nil {
			return
		}
	}
}

// add takes proc_pid_stat(5), in which the state follows the name in parentheses, which
// may have parentheses in it.
func (s *States) add(stat []byte) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return
	}
	switch stat[i+2] {
	case 'R':
		s.Running++
	case 'S', 'I', 'P':
		s.Sleeping++
	case 'T', 't':
		s.Stopped++
	case 'D':
		s.Uninterruptible++
	}
}

// openFiles is the soft limit of open files of a process; 0 if it is gone.
func openFiles(pid int) uint64 {
	var lim unix.Rlimit
	if pid <= 0 || unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &lim) != nil {
		return 0
	}
	return lim.Cur
}
