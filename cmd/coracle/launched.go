package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A program that up has started takes its lock when it runs. If up is killed just before that, the
// lock does not say that there is one.

// started is a process that an up of a place has started: a supervisor, or a coracled.
type started struct {
	pid int
	fd  int // the pidfd: after the process has ended, another one may get the pid
}

// launched returns the processes that an up of this place has started. The caller has the place, so
// that none is started meanwhile, and closes the pidfds.
func (p place) launched(supervisors bool) (all []started, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !p.isLaunched(pid, supervisors) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			return all, fmt.Errorf("process %d: %w", pid, err)
		}
		if !p.isLaunched(pid, supervisors) { // it has ended, and the pidfd may be another's
			_ = unix.Close(fd)
			continue
		}
		all = append(all, started{pid, fd})
	}
	return all, nil
}

// isLaunched looks for what up starts: processes of root that lead sessions (launch) and have
// certain arguments. All users and containers can have processes with such arguments, so it must be
// root's, and find this place at the path that it was given.
func (p place) isLaunched(pid int, supervisor bool) bool {
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		return false
	}
	args := arguments(pid)
	here := []string{"--root", p.root, "--state", p.state}
	if supervisor {
		if len(args) <= 5 || args[1] != "supervise" || !slices.Equal(args[2:6], here) {
			return false
		}
	} else if len(args) <= 4 || filepath.Base(args[0]) != "coracled" || !slices.Equal(args[1:5], here) {
		return false
	}
	return ofRoot(pid) && finds(pid, p.root)
}

// arguments are those that a process was started with, its program's name first. There are none if
// it has ended.
func arguments(pid int) []string {
	data, err := os.ReadFile(procFile(pid, "cmdline"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// ofRoot says whether the real user of a process is this machine's root. The owner of its directory
// in /proc is root, too, if the process is not dumpable.
func ofRoot(pid int) bool {
	status, err := os.ReadFile(procFile(pid, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			fields := strings.Fields(ids)
			return len(fields) > 0 && fields[0] == "0"
		}
	}
	return false
}

// finds says whether a process finds the same directory at a path as this one: in a container there
// may be a cluster of its own.
func finds(pid int, dir string) bool {
	root, err := unix.Open(procFile(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var here, there unix.Stat_t
	return unix.Stat(dir, &here) == nil && unix.Fstat(fd, &there) == nil && here.Dev == there.Dev && here.Ino == there.Ino
}

// endLate ends the programs that an up of this place has started, but for one that holds the lock.
func (p place) endLate(ctx context.Context, supervisors bool, lock string) (ended bool, err error) {
	all, err := p.launched(supervisors)
	defer func() {
		for _, l := range all {
			_ = unix.Close(l.fd)
		}
	}()
	if err != nil {
		return false, err
	}
	has, err := holder(lock) // after that: one that has just got it is among the others
	if err != nil {
		return false, err
	}
	for _, l := range all {
		if l.pid == has {
			continue
		}
		if err := endByPidfd(ctx, l.pid, l.fd); err != nil {
			return ended, fmt.Errorf("a program that 'coracle up' was starting: %w", err)
		}
		ended = true
	}
	return ended, nil
}
