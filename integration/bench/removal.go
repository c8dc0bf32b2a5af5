package main

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/internal/testkit/leak"
)

// How untilGone goes: the median of so many pods. What is left and does not change for goneStill is
// left for good (CRI-O leaves a socket's link per container), and said.
const (
	gonePods  = 5
	goneStill = 5 * time.Second
	goneTick  = time.Millisecond
)

// untilGone is the median time, in milliseconds, from the call of StopContainer until nothing is
// left of a pod: processes, mounts, cgroups, links, routes, and files. It is true to within the
// time that one look takes, some milliseconds.
func (t *target) untilGone(ctx context.Context) (float64, error) {
	var all []float64
	for range gonePods {
		took, err := t.onePodGone(ctx)
		if err != nil {
			return 0, err
		}
		all = append(all, took)
		if err := quiet.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return page.Quantile(all, .5), nil
}

func (t *target) onePodGone(ctx context.Context) (float64, error) {
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
	if err := t.client.exec(ctx, p); err != nil { // so that it has run for a while; see grace
		return 0, err
	}
	began := time.Now()
	if err := t.client.remove(ctx, p, grace); err != nil {
		return 0, err
	}
	var seen []string
	var changed time.Duration
	for {
		took := time.Since(began)
		left, err := before.Left()
		switch {
		case err != nil:
			return 0, err
		case len(left) == 0:
			return ms(took), nil
		case !slices.Equal(left, seen):
			seen, changed = left, took
		case took > changed+goneStill:
			t.say("left for good:\n\t%s", strings.Join(left, "\n\t"))
			return ms(changed), nil
		}
		if err := quiet.Pause(ctx, goneTick); err != nil {
			return 0, err
		}
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
