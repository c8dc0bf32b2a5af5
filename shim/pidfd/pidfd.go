// Package pidfd waits for processes by descriptor: for children, and for processes
// that another parent reaps, whose exit status the kernel keeps with the pidfd
// (PIDFD_GET_INFO with PIDFD_INFO_EXIT, Linux 6.15 and newer).
package pidfd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Unknown is used for the exit code of a process whose status cannot be learned. No
// process can have it.
const Unknown = -1

// Open returns a pidfd of pid that can be waited on without holding a thread.
func Open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// OpenStarted is Open, but fails with ESRCH if pid is by now another process than the
// one that had the given StartTime.
func OpenStarted(pid int, start uint64) (*os.File, error) {
	f, err := Open(pid)
	if err != nil {
		return nil, err
	}
	if now, err := StartTime(pid); err != nil || now != start {
		f.Close()
		return nil, fmt.Errorf("open pidfd of %d: %w", pid, syscall.ESRCH)
	}
	return f, nil
}

// StartTime is when pid started, in clock ticks since boot: with the pid it names a
// process for as long as the machine runs.
func StartTime(pid int) (uint64, error) {
	s, err := ReadStat(pid)
	return s.StartTime, err
}

// Stat is some of proc_pid_stat(5).
type Stat struct {
	State     byte   // 'R', 'S', 'D', 'Z', …
	Session   int    // pid of its leader
	StartTime uint64 // clock ticks since boot
}

// ReadStat reads what the kernel says of pid.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	s, err := parseStat(b)
	if err != nil {
		return Stat{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return s, nil
}

func parseStat(b []byte) (s Stat, err error) {
	// The second field is the command in parentheses and may hold anything.
	end := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[end+1:])
	if end < 0 || len(fields) < 20 || len(fields[0]) != 1 ||
		!('A' <= fields[0][0] && fields[0][0] <= 'Z' || 'a' <= fields[0][0] && fields[0][0] <= 'z') {
		return s, errors.New("malformed")
	}
	s.State = fields[0][0]
	if s.Session, err = strconv.Atoi(string(fields[3])); err != nil {
		return s, err
	}
	s.StartTime, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}

// Wait returns when the process of f (which Open made) has ended, with its exit code:
// 128+signal if a signal killed it, Unknown if it cannot be learned. A child is reaped.
// It fails only when f is closed meanwhile.
func Wait(f *os.File) (code int32, err error) { return wait(f, 0) }

// WaitUnreaped is Wait, but leaves a child to Reap. Until then the exit code outlives this program:
// its next parent can still learn it, on every kernel.
func WaitUnreaped(f *os.File) (code int32, err error) { return wait(f, unix.WNOWAIT) }

// Reap reaps the child of f if it has ended and no one has reaped it.
func Reap(f *os.File) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = reap(int(fd), 0) })
	}
}

func wait(f *os.File, options uintptr) (code int32, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return Unknown, err
	}
	err = rc.Read(func(fd uintptr) bool {
		var ended bool
		code, ended = status(int(fd), options)
		return ended
	})
	return code, err
}

// Ended returns when the process of f (which Open returned) has ended, reaped or not. The process
// may have any parent. Ended fails only when ctx ends first.
func Ended(ctx context.Context, f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	err = rc.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

func status(fd int, options uintptr) (code int32, ended bool) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 {
		return 0, false
	}
	child, err := reap(fd, options)
	switch {
	case err == nil && child.pid != 0:
		return child.exitCode(), true
	case err == nil:
		return 0, false // our child, but not quite ended
	}
	raw, known, err := exitInfo(fd)
	switch {
	case known:
		return ExitCode(unix.WaitStatus(raw)), true
	case err == nil && p[0].Revents&unix.POLLHUP == 0:
		return 0, false // its parent has not reaped it: that will wake us again
	}
	return Unknown, true
}

// ended is the part of siginfo_t that waitid(2) fills for a process, on 64 bits.
type ended struct {
	_      [2]int32 // si_signo, si_errno
	code   int32
	_      int32
	pid    int32 // 0: nothing to report yet
	_      uint32
	status int32
	_      [100]byte // siginfo_t has 128 bytes
}

// reap reaps a child if it has ended; with WNOWAIT it only asks. It uses the descriptor (P_PIDFD,
// Linux 5.4), because another child may have got the pid since. ECHILD: the process is not our
// child or has been reaped.
func reap(fd int, options uintptr) (e ended, err error) {
	// __WALL: the child may have been cloned with an exit signal other than SIGCHLD.
	options |= unix.WEXITED | unix.WNOHANG | unix.WALL
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PIDFD, uintptr(fd), uintptr(unsafe.Pointer(&e)), options, 0, 0)
		switch errno {
		case unix.EINTR:
		case 0:
			return e, nil
		default:
			return e, errno
		}
	}
}

func (e ended) exitCode() int32 {
	const exited = 1 // CLD_EXITED; the other values mean a signal
	if e.code == exited {
		return e.status
	}
	return 128 + e.status
}

// ExitCode returns the exit code of a wait status: 128+signal if a signal ended the process.
func ExitCode(ws unix.WaitStatus) int32 {
	if ws.Signaled() {
		return 128 + int32(ws.Signal())
	}
	return int32(ws.ExitStatus())
}

// info is struct pidfd_info of linux/pidfd.h, its first published size.
type info struct {
	mask, cgroup                               uint64
	pid, tgid, ppid                            uint32
	ruid, rgid, euid, egid, suid, sgid, fu, fg uint32
	exitCode                                   int32
}

const (
	infoExit = 1 << 3
	getInfo  = 3<<30 | 64<<16 | 0xff<<8 | 11 // _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)
)

// exitInfo asks for the wait status of a process that has been reaped. Kernels that
// cannot tell fail; kernels that can, and cannot yet, say not known.
func exitInfo(fd int) (status int32, known bool, err error) {
	for range 2 {
		i := info{mask: infoExit}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), getInfo, uintptr(unsafe.Pointer(&i)))
		if errno == 0 {
			return i.exitCode, i.mask&infoExit != 0, nil
		}
		err = errno
		// pidfd_info (fs/pidfs.c, 6.15) looks up the status first, then the process. It fails like
		// this if the process was reaped in between; the status exists from then on.
		if errno != unix.ESRCH {
			break
		}
	}
	return 0, false, err
}
