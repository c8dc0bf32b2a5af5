package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// inheritedFiles are the descriptors from 3 on that go into the container: first
// those of socket activation (sd_listen_fds(3)), whose number the process learns
// from its environment, then preserve more.
func inheritedFiles(p *specs.Process, preserve int) ([]*os.File, error) {
	if preserve < 0 {
		return nil, fmt.Errorf("--preserve-fds %d is negative", preserve)
	}
	listen := 0
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		listen, _ = strconv.Atoi(os.Getenv("LISTEN_FDS"))
	}
	if listen > 0 {
		p.Env = envOf(p, fmt.Sprintf("LISTEN_FDS=%d", listen), "LISTEN_PID=1")
	}
	var files []*os.File
	for n := 3; n < 3+listen+preserve; n++ {
		// Go's own descriptors have the flag; an inherited one cannot.
		flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			return nil, badDescriptor(n)
		}
		files = append(files, os.NewFile(uintptr(n), fmt.Sprintf("descriptor %d", n)))
	}
	return files, nil
}

// dialSocket connects to the socket that flag names, which wants a descriptor.
func dialSocket(flag, path string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make unix socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("connect to %s %s: %w", flag, path, err)
	}
	return os.NewFile(uintptr(fd), flag), nil
}

// dialConsole connects to the console socket, once for this program and its companion.
func (a *app) dialConsole(path string) (*os.File, error) {
	if a.console >= 0 {
		return os.NewFile(uintptr(a.console), "--console-socket"), nil
	}
	f, err := dialSocket("--console-socket", path)
	if err == nil && a.extra == nil {
		a.console, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	}
	return f, err
}

// writePidFile does nothing for an empty path.
func writePidFile(path string, pid int) error {
	if path == "" {
		return nil
	}
	if pid <= 0 {
		return errors.New("write --pid-file: the process is gone already")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(abs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("write --pid-file: %w", err)
	}
	return nil
}
