package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-project/coracle/internal/testkit/leak"
)

// How untilGone goes: the median of so many pods, each of which has to be gone in time.
const (
	gonePods     = 5
	gonePatience = 30 * time.Second
	goneTick     = time.Millisecond
)

// untilGone is the median time, in milliseconds, from the call of StopContainer until nothing is left
// of a pod: processes, mounts, cgroups, links, routes, and files. It is true to within the time that
// one look takes, some milliseconds.
func (t *target) untilGone(ctx context.Context) (float64, error) {
	var all []float64
	for range gonePods {
		took, err := t.onePodGone(ctx)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
		if err := quiet(ctx); err != nil {
			return 0, err
		}
	}
	return quantile(all, .5), nil
}

func (t *target) onePodGone(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, gonePatience)
	defer cancel()
	before, err := leak.Take(leak.Scope{
		// The peers have a /run of their own.
		Dirs:    []string{t.dir, filepath.Join("/proc", strconv.Itoa(t.pid()), "root/run")},
		Cgroups: []string{t.client.cgroup},
		Ignore:  func(line string) bool { return strings.HasPrefix(line, "file "+t.client.logs) },
	})
	if err != nil {
		return 0, err
	}
	p, err := t.client.start(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := t.client.remove(ctx, p, grace); err != nil {
		return 0, err
	}
	for {
		took := time.Since(began)
		left, err := before.Left()
		if err != nil {
			return 0, err
		}
		if len(left) == 0 {
			return ms(took), nil
		}
		if err := pause(ctx, goneTick); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: left of a pod after %s:\n\t%s\n", t.name, gonePatience, strings.Join(left, "\n\t"))
			return 0, err
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
