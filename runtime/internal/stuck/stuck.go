// Package stuck describes processes that hang, and waits for their end with a limit. A process that
// waits for a broken disk, or is frozen, does not act on SIGKILL. A caller without a limit would
// hang too.
package stuck

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
)

// Patience is the default limit for the wait for a killed process: freeing the memory of a large
// process takes seconds.
const Patience = 30 * time.Second

// ErrAlive means that a process has not ended.
var ErrAlive = errors.New("it has not ended")

// State is the letter of a process's state in proc_pid_stat(5), 0 if the process is gone.
func State(pid int) byte {
	state, _ := look(pid)
	return state
}

// Parent is the pid of a process's parent, 0 if the process is gone.
func Parent(pid int) int {
	_, parent := look(pid)
	return parent
}

func look(pid int) (state byte, parent int) {
	stat, err := os.ReadFile(file(pid, "stat"))
	if err != nil {
		return 0, 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // its name may contain anything
	if len(fields) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent
}

// Stopped reports whether a signal or a tracer has stopped the process.
func Stopped(pid int) bool {
	s := State(pid)
	return s == 'T' || s == 't'
}

// Describe returns a process's pid, its state and where in the kernel it waits.
func Describe(pid int) string {
	state := State(pid)
	if state == 0 {
		return fmt.Sprintf("process %d, which is gone", pid)
	}
	where, err := os.ReadFile(file(pid, "wchan"))
	if err != nil || len(where) == 0 || string(where) == "0" {
		return fmt.Sprintf("process %d, in state %c", pid, state)
	}
	return fmt.Sprintf("process %d, in state %c, in %s", pid, state, where)
}

// Stack returns the process's kernel stack, innermost call first, on one line; "" if it may not be
// read.
func Stack(pid int) string {
	stack, err := os.ReadFile(file(pid, "stack"))
	if err != nil {
		return ""
	}
	var calls []string
	for line := range strings.Lines(string(stack)) {
		call := strings.TrimSpace(line)
		if _, after, found := strings.Cut(call, "] "); found {
			call = after // "[<0>] do_wait+0x5a/0xe0"
		}
		calls = append(calls, call)
	}
	return strings.Join(calls, " < ")
}

// Reap waits until a child has ended, and reaps it. No other code may reap it. ErrAlive: the child
// has not ended in time. A process that has been reaped, or is not our child, is not an error;
// without free descriptors Reap does not wait for the latter.
func Reap(pid int, most time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if transient.Scarce(err) {
		return reapByNumber(pid, most)
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: pidfd_open: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := Await(pid, fd, most); err != nil {
		return err
	}
	return ReapFD(fd)
}

// reapByNumber is Reap for a program without free descriptors. The pid stays the child's until it
// is reaped, and can only be polled.
func reapByNumber(pid int, most time.Duration) error {
	return poll(func() (bool, error) {
		child, err := reap(unix.P_PID, pid)
		return child != alive, err
	}, func() string { return Describe(pid) }, most)
}

// ReapGroup waits until all children in a process group have ended, and reaps them. The caller has
// killed them, so this does not take long. No children are no error. ErrAlive: one has not ended in
// time.
func ReapGroup(pgid int, most time.Duration) error {
	name := fmt.Sprintf("process group %d", pgid)
	if pgid <= 0 { // waitid(2) takes 0 for the caller's own group
		return fmt.Errorf("reap %s: %w", name, unix.EINVAL)
	}
	return poll(func() (bool, error) {
		for {
			child, err := reap(unix.P_PGID, pgid)
			if err != nil {
				return false, fmt.Errorf("reap %s: %w", name, err)
			}
			if child != reaped { // else there may be another one
				return child == none, nil
			}
		}
	}, func() string { return name }, most)
}

// poll asks whether processes that cannot be waited for by a descriptor have ended, with a limit.
func poll(ended func() (bool, error), name func() string, most time.Duration) error {
	const tick = 2 * time.Millisecond
	for deadline := time.Now().Add(most); ; time.Sleep(tick) {
		if done, err := ended(); done || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", name(), ErrAlive)
		}
	}
}

// ReapFD reaps a child that has ended.
func ReapFD(pidfd int) error {
	_, err := reap(unix.P_PIDFD, pidfd)
	return err
}

// found is what reap finds.
type found int

const (
	alive  found = iota // a child, which has not ended
	reaped              // a child that had ended
	none                // no child, perhaps since it is reaped already
)

// reap reaps a child if it has ended, or one of a group.
func reap(by, id int) (found, error) {
	for {
		// si_signo is 0 if no child has ended (waitid(2), WNOHANG).
		var info unix.Siginfo
		// __WALL: the child may have been cloned with an exit signal other than SIGCHLD.
		err := unix.Waitid(by, id, &info, unix.WEXITED|unix.WNOHANG|unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return none, nil
		case err == nil && info.Signo != 0:
			return reaped, nil
		case err == nil:
			return alive, nil
		case !errors.Is(err, unix.EINTR):
			return alive, err
		}
	}
}

// Await waits until the process of a pidfd has ended, reaped or not. ErrAlive: it has not ended in
// time.
func Await(pid, pidfd int, most time.Duration) error {
	for deadline := time.Now().Add(most); ; {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(left, 0)/time.Millisecond))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case time.Until(deadline) <= 0:
			return fmt.Errorf("%s: %w", Describe(pid), ErrAlive)
		}
	}
}

func file(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
