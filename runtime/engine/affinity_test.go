package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// bindToOne binds this thread, which starts the starter, to the first CPU that it may run on.
func bindToOne() error {
	goruntime.LockOSThread()
	var set, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// everyCPU is what a process may run on that no one has bound, as proc writes it: the tests
// themselves may be bound.
func everyCPU(t *testing.T) string {
	t.Helper()
	list := make(chan string)
	go func() {
		defer close(list)
		goruntime.LockOSThread() // forever: the thread ends with this goroutine
		var all unix.CPUSet
		all.Fill()
		if err := unix.SchedSetaffinity(0, &all); err != nil {
			t.Error(err)
			return
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			t.Error(err)
			return
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
		line, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
		list <- line
	}()
	return <-list
}

// A container does not inherit what its maker is bound to.
func TestMakerIsBoundToCPUs(t *testing.T) {
	all := everyCPU(t)
	id := fmt.Sprintf("bound-%d", os.Getpid())
	const allowed = "grep Cpus_allowed_list /proc/self/status | tr -s '\t' ' ' | cut -d' ' -f2"
	spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x; "+allowed)
	o := order{State: filepath.Join(t.TempDir(), "state"), Bundle: runtimetest.Bundle(t), ID: id, Spec: spec, Bound: true}
	o.Exec = inside(o, allowed)
	if said, err := o.run(t); err != nil || said != all+"\n"+all {
		t.Errorf("%v, it says %q, want %q twice", err, said, all)
	}
}
