package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// A container that writes empty lines causes a record of 40 bytes for each byte, so with little CPU
// it keeps the process that writes its log busy. benchmarkWriters measures the effect on other
// pods.

// execsPerPod are timed in each pod that is started.
const execsPerPod = 5

// durations are those of other pods' calls in one round, in milliseconds.
type durations struct{ starts, execs []float64 }

// benchmarkWriters alternates rounds without writers and rounds with them, for each runtime alone.
func benchmarkWriters(ctx context.Context, o options) error {
	return withTargets(ctx, o, func(targets []*target) error {
		for _, t := range targets {
			if err := measureWriters(ctx, t, o); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
		return nil
	})
}

func measureWriters(ctx context.Context, t *target, o options) (err error) {
	c, err := t.up(ctx)
	if err != nil {
		return err
	}
	defer func() { err = joinDown(err, t) }()
	if err := c.warm(ctx, o.warm); err != nil {
		return err
	}
	var quiet, loud durations
	for round := range o.runs {
		q, err := c.others(ctx, o.n)
		if err != nil {
			return err
		}
		l, note, err := withWriters(ctx, c, o)
		if err != nil {
			return err
		}
		fmt.Printf("%s: round %d: quiet %s; %d writers %s; %s\n", t.name, round+1, q, o.writers, l, note)
		quiet, loud = quiet.and(q), loud.and(l)
	}
	start, exec := page.Quantile(loud.starts, .5)/page.Quantile(quiet.starts, .5), page.Quantile(loud.execs, .5)/page.Quantile(quiet.execs, .5)
	fmt.Printf("%s: all rounds: quiet %s; %d writers %s; pod start %.2f times, ExecSync %.2f times\n", t.name, quiet, o.writers, loud, start,
		exec)
	return nil
}

func (b durations) String() string {
	return fmt.Sprintf("pod start %.1f ms, ExecSync %.1f ms", page.Quantile(b.starts, .5), page.Quantile(b.execs, .5))
}

func (b durations) and(more durations) durations {
	return durations{append(b.starts, more.starts...), append(b.execs, more.execs...)}
}

// others times n pods one after the other. It removes them when all have been started, so that
// teardowns do not affect the times.
func (c *client) others(ctx context.Context, n int) (b durations, err error) {
	var pods []*pod
	defer func() { err = errors.Join(err, removeAll(ctx, c, pods), rest(ctx)) }()
	for range n {
		p, err := c.start(ctx)
		if err != nil {
			return b, err
		}
		pods, b.starts = append(pods, p), append(b.starts, p.took[podStart])
		for range execsPerPod {
			if err := c.exec(ctx, p); err != nil {
				return b, err
			}
			b.execs = append(b.execs, p.took[execSync])
		}
	}
	return b, nil
}

// withWriters times other pods while writers write. note says how much they wrote, and how much CPU
// time the shims took for it.
func withWriters(ctx context.Context, c *client, o options) (b durations, note string, err error) {
	var writers []*pod
	defer func() {
		for _, p := range writers {
			err = errors.Join(err, c.remove(ctx, p, 0))
		}
		err = errors.Join(err, rest(ctx))
	}()
	for range o.writers {
		p, err := c.startWith(ctx, func(ctr *cri.ContainerConfig) {
			ctr.Command = []string{"/bin/sh", "-c", `exec tr '\000' '\n' </dev/zero`}
			ctr.Linux.Resources = &cri.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: 5_000}
		})
		if err != nil {
			return b, "", err
		}
		writers = append(writers, p)
	}
	if err := rest(ctx); err != nil {
		return b, "", err
	}
	began, cpu, size := time.Now(), shimCPU(), logBytes(writers)
	b, err = c.others(ctx, o.n)
	took := time.Since(began).Seconds()
	note = fmt.Sprintf("%.0f MB/s of log, shims took %.0f %% of a CPU", float64(logBytes(writers)-size)/1e6/took,
		100*(shimCPU()-cpu).Seconds()/took)
	return b, note, err
}

// logBytes is the size of pods' logs.
func logBytes(pods []*pod) (sum int64) {
	for _, p := range pods {
		files, _ := filepath.Glob(filepath.Join(p.logs, "*")) // the pattern is valid
		for _, name := range files {
			if st, err := os.Stat(name); err == nil {
				sum += st.Size()
			}
		}
	}
	return sum
}

// shimCPU is the CPU time used by all running shims.
func shimCPU() (sum time.Duration) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, name := range stats {
		exe, err := os.Readlink(filepath.Join(filepath.Dir(name), "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "containerd-shim") {
			continue
		}
		raw, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(raw), ") ")
		f := strings.Fields(after)
		if len(f) < 13 {
			continue
		}
		var user, system int64 // fields 14 and 15 of proc(5), in ticks of 10 ms
		if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err == nil {
			sum += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	return sum
}
