// Package ownthread runs what changes a thread (its namespaces, its working directory, what it may
// do) where nothing else will ever run.
package ownthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on an operating system thread that ends with it, and returns what f returns.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The process's first thread never ends: it would keep its namespaces and the mounts in
			// them, and /proc/self would show them. Occupied here, it cannot be the one
			// that runs the next attempt.
			defer runtime.UnlockOSThread()
			done <- Run(f)
			return
		}
		// Not unlocked: the Go runtime ends the thread with the goroutine.
		done <- f()
	}()
	return <-done
}
