// Package cgroupwarm keeps joins of cgroup v1 hierarchies cheap while containers are
// being started.
//
// Moving a process into a cgroup takes the kernel's cgroup_threadgroup_rwsem for
// writing. When no one did so lately, the first writer waits for an RCU grace
// period, 10 to 12 ms on an idle machine (Linux 6.18); those that follow within
// some milliseconds do not (rcu_sync, kernel/rcu/sync.c). Keep is such a writer: it
// pays the wait while a pod or a container is still being prepared, and spares it to
// the starts that follow. The lock is the whole machine's, so any process can do
// this for another. Nothing happens on a machine that starts nothing.
package cgroupwarm

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/cgroupmode"
)

const (
	warmFor   = 250 * time.Millisecond
	warmEvery = 4 * time.Millisecond
)

// Warmer keeps joins cheap for a program. The zero value is ready.
type Warmer struct {
	mu      sync.Mutex
	until   time.Time
	running bool
}

// Keep returns at once. Its goroutine ends by itself after warmFor without a call. With only
// the unified hierarchy there is one move per container and nothing to win.
func (w *Warmer) Keep() {
	if cgroupmode.Unified() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now().Add(warmFor)
	if w.running {
		return
	}
	w.running = true
	go w.loop()
}

func (w *Warmer) loop() {
	// A thread of its own, which ends with the goroutine: only this thread is
	// ever named in the writes.
	runtime.LockOSThread()
	for w.stillWanted() && takeThreadgroupLock() {
		time.Sleep(warmEvery)
	}
	// After a failure running stays true: it is not tried again.
}

// stillWanted ends the loop's running in the same step as it says no.
func (w *Warmer) stillWanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = time.Now().Before(w.until)
	return w.running
}

// takeThreadgroupLock moves the calling thread into the cgroup it is in, which
// changes nothing. A "0" instead of the thread's number would not take the lock.
func takeThreadgroupLock() bool {
	tid := unix.Gettid()
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(data) {
		// "4:devices:/path", cgroups(7)
		parts := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(parts) == 3 && string(parts[1]) == "devices" {
			tasks := filepath.Join("/sys/fs/cgroup/devices", string(parts[2]), "tasks")
			return os.WriteFile(tasks, []byte(strconv.Itoa(tid)), 0) == nil
		}
	}
	return false
}
