package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
)

// endLost kills and reaps children that have the child's end of a conversation. A starter cloned
// them, but died or was killed before it could report their pids. The caller closes our copy of
// that end afterwards, so none of them ends before because it is hung up on.
func (c *conversation) endLost() error {
	var st unix.Stat_t
	if err := unix.Fstat(c.childs, &st); err != nil {
		return fmt.Errorf("find the starter's child: %w", err)
	}
	for {
		lost, err := childrenWith(fmt.Sprintf("socket:[%d]", st.Ino))
		for pid, fd := range lost {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			_ = unix.Close(fd)
			if rerr := endGroup(pid); rerr != nil {
				err = errors.Join(err, fmt.Errorf("end the starter's child: %w", rerr))
			}
		}
		if err != nil || len(lost) == 0 {
			return err
		}
		// One that forked in the meantime is another child; see plan.Fork.
	}
}

// endGroup ends what is left of a start, of which one process is known (see plan.Fork).
func endGroup(pid int) error {
	group, err := unix.Getpgid(pid)
	if err != nil || group == unix.Getpgrp() {
		return stuck.Reap(pid, stuck.Patience)
	}
	_ = unix.Kill(-group, unix.SIGKILL)
	return stuck.ReapGroup(group, stuck.Patience)
}

// childrenWith returns a pidfd of each child of ours that has a descriptor that leads to a name. A
// child that another goroutine starts has all our descriptors until it executes its program. It is
// none of them: nothing is between fork and exec while ForkLock is held.
func childrenWith(name string) (pidfds map[int]int, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	paths, err := filepath.Glob("/proc/[1-9]*")
	if err != nil {
		return nil, err
	}
	pidfds = map[int]int{}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil || stuck.Parent(pid) != os.Getpid() || !holds(pid, name) {
			continue
		}
		if fd, err := unix.PidfdOpen(pid, 0); err == nil { // or it has ended
			pidfds[pid] = fd
		}
	}
	return pidfds, nil
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
