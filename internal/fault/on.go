//go:build faults

package fault

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Enabled says whether fault points are live in this build.
const Enabled = true

var (
	mu   sync.Mutex
	hits = map[string]int{} // how often each point was reached
)

// New registers a point. It panics if the name is taken: what is reached in several packages
// is one variable of a package that they share.
func New(name string) Point {
	mu.Lock()
	defer mu.Unlock()
	if _, taken := hits[name]; taken {
		panic("fault point " + name + ": declared twice")
	}
	hits[name] = 0
	return Point(name)
}

// Main prints the names of all points, one a line, and ends the program if CORACLE_FAULTS is
// "list". A program calls it first.
func Main() {
	if os.Getenv("CORACLE_FAULTS") != "list" {
		return
	}
	mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(hits)) {
		fmt.Println(name)
	}
	os.Exit(0)
}

// At returns an error, blocks or kills the process if the point is armed.
func (p Point) At(ctx context.Context) error {
	name := string(p)
	mu.Lock()
	hits[name]++
	n := hits[name]
	mu.Unlock()
	switch action := armed(name, n); action {
	case "":
		return nil
	case "error":
		return fmt.Errorf("%w at %s", ErrInjected, name)
	case "hang":
		<-ctx.Done()
		return fmt.Errorf("%w at %s: %w", ErrInjected, name, ctx.Err())
	case "kill":
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // the signal is on its way
	default:
		panic(fmt.Sprintf("fault point %s: unknown action %q, want error, hang or kill", name, action))
	}
}

// armed returns the action for the n-th time that the point is reached, if any.
func armed(name string, n int) string {
	for _, list := range []string{os.Getenv("CORACLE_FAULTS"), fromFile()} {
		for item := range strings.SplitSeq(strings.TrimSpace(list), ",") {
			point, action, ok := strings.Cut(strings.TrimSpace(item), "=")
			if !ok || point != name {
				continue
			}
			if times, a, ok := strings.Cut(action, "*"); ok {
				if want, err := strconv.Atoi(times); err != nil || want != n {
					continue
				}
				action = a
			}
			return action
		}
	}
	return ""
}

func fromFile() string {
	path := os.Getenv("CORACLE_FAULTS_FILE")
	if path == "" {
		return ""
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "" // not armed yet
	}
	return string(b)
}
