package oci

import (
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// TestOrphansAreReaped: only what no one has waited for within grace, and nothing is looked
// at before a child has ended or once none is left.
func TestOrphansAreReaped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu           sync.Mutex // guards there, reaped and looks
			ended, stop  = make(chan os.Signal, 1), make(chan struct{})
			there        []base.Process
			reaped       []base.Process
			looks        int
			known, alien = base.Process{Pid: 10, Start: 1}, base.Process{Pid: 11, Start: 1}
		)
		find := func() []base.Process {
			mu.Lock()
			defer mu.Unlock()
			looks++
			return slices.Clone(there)
		}
		reap := func(p base.Process) {
			mu.Lock()
			defer mu.Unlock()
			reaped = append(reaped, p)
			there = slices.DeleteFunc(there, func(q base.Process) bool { return q == p })
		}
		run := func(processes ...base.Process) {
			mu.Lock()
			defer mu.Unlock()
			there = processes
		}
		go lookAfter(ended, stop, find, reap)

		time.Sleep(time.Hour)
		run(known, alien)
		ended <- unix.SIGCHLD
		time.Sleep(grace + time.Second)
		run(base.Process{Pid: known.Pid, Start: 2}, alien) // waited for; its pid has ended again
		time.Sleep(grace)
		mu.Lock()
		if !slices.Equal(reaped, []base.Process{alien}) {
			t.Errorf("reaped %v, want the orphan", reaped)
		}
		mu.Unlock()
		run()
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if looks != 3 {
			t.Errorf("looked %d times, want 3", looks)
		}
		close(stop)
	})
}
