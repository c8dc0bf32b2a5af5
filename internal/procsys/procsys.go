// Package procsys opens /proc/sys so that it stays quick on a node with many network namespaces.
//
// The kernel's cache of names has an entry for each namespace in which somebody has looked up net/ipv4 or net/ipv6, all
// of one name in one directory, and compares each (proc_sys_compare in fs/proc/proc_sysctl.c, Linux 6.18) to find that
// of the thread's: with 500 pods 1.3 ms of processor time for the start of another. Each instance of the file system
// has its own names. So those that this package mounts, where nobody else sees them, are used for some pods only.
package procsys

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// uses is how often one instance is used. To mount one and let it go takes 0.1 ms.
const uses = 64

// instance is a mount of proc.
type instance struct {
	fd   int
	left int // times that it may still be begun to be used
	busy int // users
}

var (
	mu     sync.Mutex
	latest *instance // nil if there is none that may be used
)

// Use calls f with a path that leads to what /proc/sys does: a file under it is that of the namespaces of the thread
// which opens it. The path is good until f returns.
func Use(f func(dir string) error) error {
	i, err := take()
	if err != nil {
		return f("/proc/sys") // it is no more than slower
	}
	defer i.put()
	return f(fmt.Sprintf("/proc/self/fd/%d/sys", i.fd))
}

func take() (*instance, error) {
	mu.Lock()
	defer mu.Unlock()
	if latest == nil {
		fd, err := mount()
		if err != nil {
			return nil, err
		}
		latest = &instance{fd: fd, left: uses}
	}
	i := latest
	i.busy++
	i.left--
	if i.left == 0 {
		latest = nil
	}
	return i, nil
}

func (i *instance) put() {
	mu.Lock()
	defer mu.Unlock()
	i.busy--
	if i.busy == 0 && i.left == 0 {
		_ = unix.Close(i.fd)
	}
}

// mount makes an instance that is not part of any tree, and ends with its descriptor.
func mount() (fd int, err error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open proc: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("create proc: %w", err)
	}
	fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount proc: %w", err)
	}
	return fd, nil
}
