// Package procsys opens /proc/sys so that it stays quick on a node with many network namespaces.
//
// The kernel's cache of names has an entry for each namespace in which someone has looked up
// net/ipv4 or net/ipv6, all of one name in one directory, and compares each (proc_sys_compare in
// fs/proc/proc_sysctl.c, Linux 6.18) to find that of the thread's: with 500 pods 1.3 ms of
// processor time for the start of another. Each instance of the file system has its own names. So
// those that this package mounts, where no one else sees them, are used for some pods only.
package procsys

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// uses is how often one instance is used, or little more. To mount one and let it go takes 0.1 ms.
const uses = 64

// instance is a mount of proc.
type instance struct {
	fd   int
	left int // uses
	busy int // users
}

var (
	mu       sync.Mutex
	latest   *instance // never nil again once there is one
	mounting bool      // the next
	refused  bool      // the kernel lets us mount none
)

// Use calls f with a path that leads to what /proc/sys does: a file under it is that of the
// namespaces of the thread which opens it. The path is good until f returns.
func Use(f func(dir string) error) error {
	i := take()
	if i == nil {
		return f("/proc/sys") // it is no more than slower
	}
	defer i.put()
	return f(fmt.Sprintf("/proc/self/fd/%d/sys", i.fd))
}

// take returns an instance to use, or nil. No one waits while the next is mounted.
func take() *instance {
	if i, mount := present(); !mount {
		return i
	}
	fd, err := mount()
	mu.Lock()
	defer mu.Unlock()
	mounting = false
	if err != nil {
		if refused = latest == nil; !refused {
			latest.left = uses // there is no other for now
		}
		return nil
	}
	if old := latest; old != nil && old.busy == 0 {
		defer unix.Close(old.fd)
	}
	latest = &instance{fd: fd, left: uses - 1, busy: 1}
	return latest
}

// present returns the latest instance, to be used, unless the caller is to mount the next.
func present() (i *instance, mount bool) {
	mu.Lock()
	defer mu.Unlock()
	if refused {
		return nil, false
	}
	if !mounting && (latest == nil || latest.left <= 0) {
		mounting = true
		return nil, true
	}
	if latest != nil {
		latest.left--
		latest.busy++
	}
	return latest, false
}

func (i *instance) put() {
	mu.Lock()
	i.busy--
	last := i.busy == 0 && i != latest
	mu.Unlock()
	if last {
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
