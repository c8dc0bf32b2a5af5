// Package leak tells what a test has left on the machine: processes, mounts,
// pinned namespaces, cgroups, links, routes, addresses, nftables tables, files, descriptors.
//
//	before, err := leak.Take(leak.Scope{Dirs: []string{root, state}, Cgroups: []string{"coracle-test-x1"}})
//	… test …
//	left, err := before.Left()
//
// It is exact where the caller has namespaces of its own (testkit.Isolate), and
// looks only at what Scope names elsewhere.
package leak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Scope says where to look.
type Scope struct {
	// Dirs are directories whose files count.
	Dirs []string
	// Cgroups are parts of cgroup paths that belong to the test.
	Cgroups []string
	// PIDs are long-lived processes: their open descriptors count, and they may be
	// replaced by others of the same name. Called for each reading.
	PIDs func() []int
	// Ignore leaves out what the test itself keeps; it is given lines as Left
	// returns them.
	Ignore func(line string) bool
}

// Snapshot is what there was at one moment. Each entry is a line that names a thing
// and its kind, with the number of times it is there.
type Snapshot struct {
	scope Scope
	seen  map[string]seen
}

// seen is a thing as Left tells of it, if it does, and how many there are. What tells it from
// others is the key that it is under: a process may change its name.
type seen struct {
	line string
	n    int
}

// Take reads the present state.
func Take(s Scope) (*Snapshot, error) {
	now, err := s.read()
	if err != nil {
		return nil, err
	}
	return &Snapshot{scope: s, seen: now}, nil
}

// Left returns, sorted, what is there now and was not there when the snapshot was
// taken.
func (s *Snapshot) Left() ([]string, error) {
	now, err := s.scope.read()
	if err != nil {
		return nil, err
	}
	var left []string
	for key, is := range now {
		was, line := s.seen[key].n, is.line
		if is.n <= was || line == "" || (s.scope.Ignore != nil && s.scope.Ignore(line)) {
			continue
		}
		if was > 0 {
			line = fmt.Sprintf("%s (%d, were %d)", line, is.n, was)
		}
		left = append(left, line)
	}
	slices.Sort(left)
	return left, nil
}

// settle is when Check gives up on what is being torn down: the kernel frees namespaces and
// links some time after the last reference is dropped, which is long on a busy machine.
const settle = time.Minute

// TB is what Check needs of a test.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Check fails the test if something is left.
func (s *Snapshot) Check(t TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settle)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := s.Left()
		if err == nil && len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if err != nil {
				t.Errorf("leak check: %v", err)
			}
			if len(left) > 0 {
				t.Errorf("left behind:\n\t%s", strings.Join(left, "\n\t"))
			}
			return
		}
	}
}

// read counts everything in scope.
func (s Scope) read() (map[string]seen, error) {
	now := map[string]seen{}
	put := func(key, line string) { now[key] = seen{line: line, n: now[key].n + 1} }
	add := func(kind, what string) { put(kind+" "+what, kind+" "+what) }
	var longLived []int
	if s.PIDs != nil {
		longLived = s.PIDs()
	}
	err := errors.Join(
		processes(longLived, put),
		mounts(add),
		cgroups(s.Cgroups, add),
		links(add),
		routes(add),
		tables(add),
		files(s.Dirs, add),
	)
	for _, pid := range longLived {
		err = errors.Join(err, descriptors(pid, add))
	}
	return now, err
}
