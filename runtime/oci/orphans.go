package oci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// orphans reaps children that this program has only because it is a subreaper: children of a
// process that shares the host's PID namespace, or of a command that was killed. No other code
// waits for them, so they would stay zombies.
//
// Code that knows a child waits for it at once. So a zombie that is seen twice, with grace between,
// is an orphan. The search starts when a child ends, and stops when no zombie is left.
type orphans struct {
	mu   sync.Mutex
	stop chan struct{} // nil while no one watches
	done chan struct{}
}

// grace is how long a caller may take to wait for a process that has ended.
const grace = 10 * time.Second

// watch makes this program a subreaper and starts to look after orphans.
func (s *orphans) watch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of what OCI runtimes start: %w", err)
	}
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func(stop, done chan struct{}) {
		defer close(done)
		defer signal.Stop(ended)
		lookAfter(ended, stop, zombies, reap)
	}(s.stop, s.done)
	return nil
}

func (s *orphans) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		close(s.stop)
		<-s.done
		s.stop = nil
		for _, p := range zombies() {
			reap(p)
		}
	}
}

// lookAfter reaps what find finds twice, until stop is closed.
func lookAfter(ended <-chan os.Signal, stop <-chan struct{}, find func() []base.Process, reap func(base.Process)) {
	var again <-chan time.Time // nil while no zombie is known to be
	seen := map[base.Process]bool{}
	for {
		select {
		case <-stop:
			return
		case <-ended:
			if again == nil {
				again = time.After(grace)
			}
		case <-again:
			again = nil
			before := seen
			seen = map[base.Process]bool{}
			for _, p := range find() {
				if before[p] {
					reap(p)
				} else {
					seen[p] = true
				}
			}
			if len(seen) > 0 {
				again = time.After(grace)
			}
		}
	}
}

// zombies are the children of this program that have ended and are not waited for.
func zombies() []base.Process {
	return slices.DeleteFunc(children(), func(p base.Process) bool {
		state, start, err := base.ProcStat(p.Pid)
		return err != nil || start != p.Start || state != 'Z'
	})
}

// children are those of this program. It needs /proc/PID/task/TID/children, which kernels have that
// can checkpoint (CONFIG_PROC_CHILDREN).
func children() []base.Process {
	var found []base.Process
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range bytes.FieldsSeq(b) {
			pid, err := strconv.Atoi(string(field))
			if err != nil {
				continue
			}
			if p, err := base.Identify(pid); err == nil {
				found = append(found, p)
			}
		}
	}
	return found
}

// reap reaps a child that has ended. It ignores a child that has not, and another process that has
// got its pid.
func reap(p base.Process) {
	if now, err := base.Identify(p.Pid); p.Pid <= 0 || err != nil || now != p {
		return
	}
	for {
		_, err := unix.Wait4(p.Pid, nil, unix.WNOHANG|unix.WALL, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
