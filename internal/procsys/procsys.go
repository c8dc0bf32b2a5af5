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

// Instances are those that one owner uses in turn. The zero value has none yet.
type Instances struct {
	mu       sync.Mutex
	latest   *instance // nil before the first, and after Close
	mounting bool      // the next
	refused  bool      // the kernel lets us mount none
	closes   int       // calls of Close
}

// Use calls f with a path that leads to what /proc/sys does: a file under it is that of the
// namespaces of the thread which opens it. The path is good until f returns.
func (p *Instances) Use(f func(dir string) error) error {
	i := p.take()
	if i == nil {
		return f("/proc/sys") // it is no more than slower
	}
	defer p.put(i)
	return f(fmt.Sprintf("/proc/self/fd/%d/sys", i.fd))
}

// Close lets go of the instance. Use works again afterwards, with the next.
func (p *Instances) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest != nil && p.latest.busy == 0 {
		_ = unix.Close(p.latest.fd)
	}
	p.latest = nil
	p.closes++
}

// take returns an instance to use, or nil. No one waits while the next is mounted.
func (p *Instances) take() *instance {
	i, closes, ours := p.present()
	if !ours {
		return i
	}
	fd, err := mount()
	return p.mounted(fd, err, closes)
}

// mounted takes in the next instance, or that there is none, and returns it to be used. closes is
// how often Close had been called before.
func (p *Instances) mounted(fd int, err error, closes int) *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mounting = false
	switch {
	case err == nil && p.closes > closes:
		return &instance{fd: fd, busy: 1} // which put closes
	case err == nil:
	case p.latest != nil:
		p.latest.left = uses // there is no other for now
		return nil
	default:
		p.refused = p.closes == closes
		return nil
	}
	if old := p.latest; old != nil && old.busy == 0 {
		defer unix.Close(old.fd)
	}
	p.latest = &instance{fd: fd, left: uses - 1, busy: 1}
	return p.latest
}

// present returns the latest instance, to be used, unless the caller is to mount the next, and how
// often Close has been called.
func (p *Instances) present() (i *instance, closes int, mount bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused {
		return nil, p.closes, false
	}
	if !p.mounting && (p.latest == nil || p.latest.left <= 0) {
		p.mounting = true
		return nil, p.closes, true
	}
	if p.latest != nil {
		p.latest.left--
		p.latest.busy++
	}
	return p.latest, p.closes, false
}

func (p *Instances) put(i *instance) {
	p.mu.Lock()
	i.busy--
	last := i.busy == 0 && i != p.latest
	p.mu.Unlock()
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
