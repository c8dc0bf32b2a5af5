package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
)

// endLost kills and reaps children that have the child's end of a conversation. A starter cloned
// them, but died or was killed before it could report their pids. The caller closes our copy of
// that end afterwards.
func (c *conversation) endLost() error {
	var st unix.Stat_t
	if err := unix.Fstat(c.childs, &st); err != nil {
		return fmt.Errorf("find the starter's child: %w", err)
	}
	socket := fmt.Sprintf("socket:[%d]", st.Ino)
	paths, _ := filepath.Glob("/proc/[1-9]*") // the pattern is valid
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil || stuck.Parent(pid) != os.Getpid() || !holds(pid, socket) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // the process has ended
		}
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
		if err := stuck.Reap(pid, stuck.Patience); err != nil {
			return fmt.Errorf("end the starter's child: %w", err)
		}
	}
	return nil
}

// holds reports whether a process has a descriptor that leads to a name.
func holds(pid int, name string) bool {
	fds, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", fd.Name())); err == nil && link == name {
			return true
		}
	}
	return false
}
