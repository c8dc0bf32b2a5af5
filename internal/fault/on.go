//go:build faults

package fault

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
)

// Enabled says whether fault points are live in this build.
const Enabled = true

// listVar arms points, or is "list".
const listVar = "CORACLE_FAULTS"

var (
	mu   sync.Mutex
	hits = map[string]int{} // how often each point was reached
)

// New registers a point. It panics if the name exists: several packages that reach the same point
// must share one variable.
func New(name string) Point {
	mu.Lock()
	defer mu.Unlock()
	if _, taken := hits[name]; taken {
		panic("fault point " + name + ": declared twice")
	}
	hits[name] = 0
	return Point(name)
}

// Main prints the names of all points, one per line, and ends the program, if CORACLE_FAULTS is
// "list". A program calls it first.
func Main() {
	if os.Getenv(listVar) != "list" {
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
	f := armed(name, n)
	note(name, f.action)
	if f.action == "" {
		return nil
	}
	return f.act(ctx, name)
}

// note records that the point was reached. A process without free descriptors cannot, and
// continues.
func note(name, action string) {
	path := os.Getenv(reachedVar)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	line := name
	if action != "" {
		line += " " + action
	}
	_, _ = f.WriteString(line + "\n")
}
