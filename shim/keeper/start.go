package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

// Listen makes the keeper's socket in dir, which must be private to root.
func Listen(dir string) (*net.UnixListener, error) {
	return sock.Listen(dir, SocketName, "unixpacket")
}

// Start starts a keeper in dir. It kills a keeper there that hangs or cannot be reached; report
// then says what its threads were doing.
func Start(ctx context.Context, dir, binary string) (report string, err error) {
	// There is more than one keeper only after a failure. The limit guards against a program that
	// poses as a keeper and forks faster than it is killed.
	for range mostKeepers {
		did, err := Kill(ctx, dir)
		report += did
		if errors.Is(err, ErrGone) {
			break
		}
		if err != nil {
			return report, err
		}
	}
	l, err := Listen(dir)
	if err != nil {
		return report, err
	}
	defer l.Close()
	return report, Spawn(binary, l)
}

// mostKeepers is how many keepers of one directory Start kills.
const mostKeepers = 3

// Spawn starts a keeper that serves l. The keeper is not a child of the caller and outlives it.
func Spawn(binary string, l *net.UnixListener) error {
	f, err := l.File()
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer f.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer null.Close()
	p, err := os.StartProcess(binary, []string{ProcessName}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, f},
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer time.AfterFunc(spawnTimeout, func() { _ = p.Kill() }).Stop()
	st, err := p.Wait() // of the intermediate process, which has forked the keeper
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	if !st.Success() {
		return fmt.Errorf("start keeper: %s", st)
	}
	return nil
}

// spawnTimeout leaves time to read the binary from a slow disk.
const spawnTimeout = 30 * time.Second

// Kill kills the keeper of dir and returns when it has ended. The keeper need not answer, and its
// socket's name may be gone. The report says what its threads were doing. Kill fails with ErrGone
// if there is no keeper.
func Kill(ctx context.Context, dir string) (report string, err error) {
	pid, f, err := find(dir)
	if err != nil {
		return "", fmt.Errorf("kill keeper: %w", err)
	}
	defer f.Close()
	report = threads(pid)
	rc, err := f.SyscallConn()
	if err != nil {
		return report, fmt.Errorf("kill keeper %d: %w", pid, err)
	}
	if cerr := rc.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); cerr != nil {
		err = cerr
	}
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return report, fmt.Errorf("kill keeper %d: %w", pid, err)
	}
	if err := pidfd.Ended(ctx, f); err != nil {
		return report, fmt.Errorf("kill keeper %d: await its end: %w", pid, err)
	}
	return report, nil
}

// find looks for the keeper of dir among all processes: a hung keeper cannot be asked, and the peer
// of a connection is the process that called listen(2). It opens a pidfd of each candidate before
// it examines the candidate, so that the pid cannot be reused meanwhile.
func find(dir string) (pid int, f *os.File, err error) {
	want, err := os.Stat(dir)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return 0, nil, ErrGone
		}
		return 0, nil, err
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, nil, err
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if comm, err := os.ReadFile(filepath.Join("/proc", e.Name(), "comm")); err != nil || strings.TrimSpace(string(comm)) != ProcessName {
			continue
		}
		f, err := pidfd.Open(pid)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		if keeps(f, dir, want) {
			return pid, f, nil
		}
		f.Close()
	}
	return 0, nil, ErrGone
}

// keeps reports whether a process is the keeper of dir, which is the file want. Any process may
// have the keeper's name. A container can have a socket of the same path, because a path in another
// mount namespace means another file. So keeps also compares the socket's file.
func keeps(process *os.File, dir string, want os.FileInfo) bool {
	path, bound, err := listensOn(process)
	if err != nil {
		return false
	}
	path, deleted := strings.CutSuffix(path, " (deleted)")
	if filepath.Base(path) != SocketName {
		return false
	}
	if got, err := os.Stat(filepath.Dir(path)); err != nil || !os.SameFile(want, got) {
		return false
	}
	if !deleted {
		var now unix.Stat_t
		err := unix.Lstat(filepath.Join(dir, SocketName), &now)
		return err == nil && now.Dev == bound.Dev && now.Ino == bound.Ino
	}
	d, ok := want.Sys().(*syscall.Stat_t)
	return ok && d.Dev == bound.Dev
}

// listensOn returns the path and the file of the socket that a keeper has as descriptor 3.
func listensOn(process *os.File) (path string, bound unix.Stat_t, err error) {
	rc, err := process.SyscallConn()
	if err != nil {
		return "", bound, err
	}
	cerr := rc.Control(func(fd uintptr) {
		var s, domain, file int
		if s, err = unix.PidfdGetfd(int(fd), 3, 0); err != nil {
			return
		}
		defer unix.Close(s)
		if domain, err = unix.GetsockoptInt(s, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain != unix.AF_UNIX {
			err = unix.EAFNOSUPPORT
		}
		if err != nil {
			return
		}
		// Its bound name is a path below /proc/self (package sock). Only the kernel knows the file.
		if file, err = unix.IoctlRetInt(s, siocUnixFile); err != nil {
			return
		}
		defer unix.Close(file)
		if err = unix.Fstat(file, &bound); err != nil {
			return
		}
		path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(file))
	})
	return path, bound, errors.Join(err, cerr)
}

// siocUnixFile opens the file that a unix socket is bound to (O_PATH). It needs CAP_NET_ADMIN.
const siocUnixFile = 0x89e0 // SIOCUNIXFILE of linux/un.h

// mostReport limits the report on one process, in bytes. A keeper has a few threads.
const mostReport = 64 << 10

// threads returns a report for a log: where each thread of a process is in the kernel.
func threads(pid int) string {
	var b strings.Builder
	task := fmt.Sprintf("/proc/%d/task", pid)
	tids, _ := os.ReadDir(task) // the report omits what cannot be read
	for _, t := range tids {
		if b.Len() > mostReport {
			b.WriteString("and more threads\n")
			break
		}
		for _, name := range []string{"stat", "wchan", "syscall", "stack"} {
			if text, err := os.ReadFile(filepath.Join(task, t.Name(), name)); err == nil {
				fmt.Fprintf(&b, "%s %s: %s\n", t.Name(), name, strings.TrimSpace(string(text)))
			}
		}
	}
	return b.String()
}
