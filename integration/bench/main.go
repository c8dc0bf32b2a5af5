// Command bench measures CRI runtimes, or with -cluster whole clusters, from the outside, over their sockets, in one
// run on one machine: how long the steps of a pod's life take, and how much memory
// an idle pod costs beyond its payload.
//
//	bin/test/bench                       coracle, and the peers in bin/peers
//	bin/test/bench -targets coracle -n 20 -rounds 2
//	bin/test/bench -o out/bench.json -md docs/benchmarks.md
//	bin/test/bench -cluster              whole clusters, Coracle's and upstream's
//	bin/test/bench -images               pulling and unpacking
//	bin/test/bench -writers 4            starts and execs next to containers that write at full speed
//
// Latency: all runtimes are up, and take turns in rounds, so that a noisy moment
// falls on all of them. Memory: one runtime at a time is up, alone in a process
// namespace with the registry and this program, so that every process that is not
// the payload is the runtime's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// registryAddr is free: the program runs in a network namespace of its own.
const registryAddr = "127.0.0.1:5000"

type options struct {
	targets, out, md    string
	n, rounds, warm     int
	pods                int
	seccomp             bool
	noLatency, noMemory bool
	noCrowd, noScale    bool
	crowd, clients      int
	cluster             bool
	clusterFlags        string
	images              bool
	imageRounds, tiny   int
	writers             int
}

func main() { os.Exit(testkit.Isolate(run)) }

func run() int {
	var o options
	flag.StringVar(&o.targets, "targets", "", "comma-separated: coracle, containerd+runc, containerd+crun, cri-o+crun (default: those that are installed); with -cluster: coracle, upstream")
	flag.IntVar(&o.n, "n", 20, "pods per runtime and round")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds")
	flag.IntVar(&o.warm, "warmup", 3, "pods per runtime that are not counted")
	flag.IntVar(&o.pods, "pods", 50, "idle pods that memory is measured with")
	flag.BoolVar(&o.seccomp, "seccomp", false, "ask for the default seccomp profile, as a kubelet with seccompDefault does")
	flag.BoolVar(&o.noLatency, "no-latency", false, "leave latency out")
	flag.BoolVar(&o.noMemory, "no-memory", false, "leave memory out")
	flag.IntVar(&o.crowd, "crowd", 100, "pods that are started at once")
	flag.IntVar(&o.clients, "clients", 10, "clients that start them")
	flag.BoolVar(&o.noCrowd, "no-crowd", false, "leave out pods that are started at once")
	flag.BoolVar(&o.noScale, "no-scale", false, "leave out the first runtime with many pods")
	flag.BoolVar(&o.cluster, "cluster", false, "measure whole clusters instead of runtimes")
	flag.StringVar(&o.clusterFlags, "cluster-flags", "", "flags for cluster-bench, which -cluster runs")
	flag.BoolVar(&o.images, "images", false, "measure pulling and unpacking images instead")
	flag.IntVar(&o.imageRounds, "image-rounds", 3, "rounds of -images")
	flag.IntVar(&o.tiny, "tiny", 1000, "tiny images of -images")
	flag.IntVar(&o.writers, "writers", 0, "measure starts and execs next to this many containers that write empty lines, each with 5 % of a CPU")
	flag.StringVar(&o.out, "o", "", "write the figures as JSON to this file")
	flag.StringVar(&o.md, "md", "", "write the table into this Markdown page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	measure := benchmark
	if o.cluster {
		measure = benchmarkCluster
	}
	if o.images {
		measure = benchmarkImages
	}
	if o.writers > 0 {
		measure = benchmarkWriters
	}
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// report is what -o writes.
type report struct {
	Date    string    `json:"date"`
	Machine machine   `json:"machine"`
	Command string    `json:"command"`
	Results []*result `json:"results"`
}

type machine struct {
	CPUs       int    `json:"cpus"`
	Model      string `json:"cpu_model"`
	Kernel     string `json:"kernel"`
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

// result is one runtime's figures.
type result struct {
	Target  string          `json:"target"`
	Version string          `json:"version"`
	Latency map[step]sample `json:"latency_ms,omitempty"`
	Memory  *memory         `json:"memory,omitempty"`
	Crowd   *crowd          `json:"crowd,omitempty"`
	Scale   *scale          `json:"scale,omitempty"`
}

func benchmark(ctx context.Context, o options) error {
	return withTargets(ctx, o, func(targets []*target) error { return benchmarkRuntimes(ctx, targets, o) })
}

// withTargets calls measure with the runtimes on their own disk, and a registry that has the
// payload.
func withTargets(ctx context.Context, o options, measure func([]*target) error) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	registry, err := publish(ctx, dir)
	if err != nil {
		return err
	}
	defer registry.Close()
	disk := filepath.Join(dir, "d")
	unmount, err := mountDisk(ctx, disk)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // the logs are there
			fmt.Fprintf(os.Stderr, "bench: the logs are left in %s.img: mount -o loop %[1]s.img %[1]s\n", disk)
		}
	}()
	targets, err := chooseTargets(o.targets, disk, o.seccomp)
	if err != nil {
		return err
	}
	if err := errors.Join(measure(targets), unmount()); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func benchmarkRuntimes(ctx context.Context, targets []*target, o options) (err error) {
	rep := report{Date: time.Now().UTC().Format(time.DateOnly), Command: "make bench-peers bench", Machine: thisMachine()}
	for _, t := range targets {
		rep.Results = append(rep.Results, &result{Target: t.name})
	}
	if !o.noLatency {
		if err := measureLatency(ctx, targets, rep.Results, o); err != nil {
			return err
		}
	}
	if !o.noMemory {
		for i, t := range targets {
			if rep.Results[i].Memory, err = measureMemory(ctx, t, o.pods); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
		}
	}
	for i, t := range targets {
		if o.noCrowd {
			break
		}
		if rep.Results[i].Crowd, err = measureCrowd(ctx, t, o); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	if !o.noScale {
		if rep.Results[0].Scale, err = measureScale(ctx, targets[0], o); err != nil {
			return fmt.Errorf("%s: %w", targets[0].name, err)
		}
	}
	rep.Machine.LoadAfter = loadAverage()
	fmt.Print(aligned(rows(rep)))
	if o.md != "" {
		err = page.Write(o.md, page.Runtimes, runtimesPage(rep, o))
	}
	if o.out != "" {
		raw, jerr := json.MarshalIndent(rep, "", "  ")
		err = errors.Join(err, jerr, os.WriteFile(o.out, append(raw, '\n'), 0o644))
	}
	return err
}

// publish starts a registry with the payload.
func publish(ctx context.Context, dir string) (*testkit.Registry, error) {
	web, err := testkit.FindBin("test", "web")
	if err != nil {
		return nil, err
	}
	src, err := images.NewSource(filepath.Dir(filepath.Dir(web)))
	if err != nil {
		return nil, err
	}
	list, err := src.Bench()
	if err != nil {
		return nil, err
	}
	registry, err := testkit.NewRegistry(dir, testkit.RegistryOptions{Addr: registryAddr})
	if err != nil {
		return nil, err
	}
	return registry, images.Push(ctx, registryAddr, list, ociimage.Registry{PlainHTTP: true})
}

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU(), LoadBefore: loadAverage()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m.Model = strings.TrimSpace(v)
			break
		}
	}
	return m
}

func loadAverage() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
