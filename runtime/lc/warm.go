package lc

import (
	"bytes"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"sync"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// Moving a process into a cgroup takes the kernel's cgroup_threadgroup_rwsem for
// writing. When nobody did so lately, the first writer waits for an RCU grace
// period, 10 to 12 ms on an idle machine (Linux 6.18); those that follow within
// some milliseconds do not (rcu_sync, kernel/rcu/sync.c). keepWarm is such a
// writer: it pays the wait while a Create or Exec still prepares, and spares it to
// the next ones for a while. It does nothing on a machine that starts nothing.
const (
	warmFor   = 250 * time.Millisecond
	warmEvery = 4 * time.Millisecond
)

var warm struct {
	mu      sync.Mutex
	until   time.Time
	running bool
}

// keepWarm returns at once. Its goroutine ends by itself after warmFor. With only
// the unified hierarchy there is one move per container and nothing to win.
func keepWarm() {
	if cgroups.IsCgroup2UnifiedMode() {
		return
	}
	warm.mu.Lock()
	defer warm.mu.Unlock()
	warm.until = time.Now().Add(warmFor)
	if warm.running {
		return
	}
	warm.running = true
	go warmLoop()
}

func warmLoop() {
	// A thread of its own, which ends with the goroutine: only this thread is
	// ever named in the writes.
	goruntime.LockOSThread()
	for stillWanted() && takeThreadgroupLock() {
		time.Sleep(warmEvery)
	}
	// After a failure running stays true: it is not tried again.
}

// stillWanted ends the loop's running in the same step as it says no.
func stillWanted() bool {
	warm.mu.Lock()
	defer warm.mu.Unlock()
	warm.running = time.Now().Before(warm.until)
	return warm.running
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
