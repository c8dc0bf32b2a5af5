// Package program is the zygote's executable, made of ../zygote.c by go generate, and how it is
// executed. It imports next to nothing, so that package early can begin while the initialisers
// of a program's other packages still run.
package program

//go:generate go run ./internal/mkprogram

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Name is the zygote's name among processes, at most 15 bytes.
const Name = "coracle-zygote"

// Start executes the zygote with the socket that is returned as its descriptor 3.
func Start() (sock *os.File, process *Process, err error) {
	exe, err := executable()
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(exe)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(fds[1])
	process, err = execute(exe, fds[1])
	if err != nil {
		_ = unix.Close(fds[0])
		return nil, nil, fmt.Errorf("execute the starter's program: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "zygote"), process, nil
}

func execute(exe, sock int) (*Process, error) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	defer unix.Close(null)
	p := &Process{}
	p.Pid, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(exe), []string{Name}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(sock)},
		Sys: &syscall.SysProcAttr{PidFD: &p.pidfd},
	})
	return p, err
}

// executable returns the program as a sealed memfd: no one, not even a container that gets
// hold of it through /proc, can change what runs.
func executable() (int, error) {
	low, err := unix.MemfdCreate(Name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(low)
	// Where the program to be executes it from; there the socket becomes descriptor 3.
	const aboveSocket = 4
	fd, err := unix.FcntlInt(uintptr(low), unix.F_DUPFD_CLOEXEC, aboveSocket)
	if err != nil {
		return -1, fmt.Errorf("duplicate the starter's program: %w", err)
	}
	n, err := unix.Write(fd, []byte(image))
	if err == nil && n != len(image) {
		err = unix.EIO
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make the starter's program: %w", err)
	}
	return fd, nil
}
