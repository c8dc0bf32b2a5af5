package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// A program that up has started takes its lock when it runs. If up is killed just before that, the
// lock does not say that there is one.

// launched returns the processes that an up of this place has started: supervisors, or coracleds.
// They lead sessions (launch). The caller has the place, so that none is started meanwhile.
func (p place) launched(supervisors bool) (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue // no process
		}
		if sid, err := unix.Getsid(pid); err == nil && sid == pid && p.isLaunched(pid, supervisors) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isLaunched looks at the arguments that up gives what it starts.
func (p place) isLaunched(pid int, supervisor bool) bool {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false // it has ended
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		args = append(args, string(arg))
	}
	here := []string{"--root", p.root, "--state", p.state}
	if supervisor {
		return len(args) > 5 && args[1] == "supervise" && slices.Equal(args[2:6], here)
	}
	return len(args) > 4 && filepath.Base(args[0]) == "coracled" && slices.Equal(args[1:5], here)
}

// endLate ends the programs that an up of this place has started, but for one that holds the lock.
func (p place) endLate(ctx context.Context, supervisors bool, lock string) (ended bool, err error) {
	pids, err := p.launched(supervisors)
	if err != nil {
		return false, err
	}
	has, err := holder(lock) // after that: one that has just got it is among the others
	if err != nil {
		return false, err
	}
	for _, pid := range pids {
		if pid == has {
			continue
		}
		if err := end(ctx, pid); err != nil {
			return ended, fmt.Errorf("a program that 'coracle up' was starting: %w", err)
		}
		ended = true
	}
	return ended, nil
}
