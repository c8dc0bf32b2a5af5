// Package netspace makes network namespaces and runs code in them, for tests and measurements.
package netspace

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// New makes a network namespace, whose loopback is down. The caller closes it. It takes root.
func New() (ns netns.NsHandle, err error) {
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace, which takes root: %w", err)
		}
		ns, err = netns.Get()
		return err
	})
	return ns, err
}

// Within runs f in a network namespace and returns its error. A goroutine that f starts is not
// there.
func Within(ns netns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}
