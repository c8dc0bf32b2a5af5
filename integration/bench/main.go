// Command bench measures CRI runtimes, or with -cluster whole clusters, from the outside, over
// their sockets, in one run on one machine: how long the steps of a pod's life take, and how much
// memory an idle pod costs beyond its payload.
//
//	bin/test/bench                       coracle, and the peers in bin/peers
//	bin/test/bench -targets coracle -runs 2 -parts latency
//	bin/test/bench -o out/bench.json -md docs/benchmarks.md
//	bin/test/bench -cluster              whole clusters, Coracle's and upstream's
//	bin/test/bench -images               pulling and unpacking
//	bin/test/bench -oci                  one container, by the OCI runtimes and in process
//	bin/test/bench -writers 4            starts and execs next to containers that write at full speed
//
// Runtimes and images are measured in several runs, in which the runtimes take turns, and each time
// another one begins. Many pods are started once, by one runtime after another, and each run is
// among the same. A turn begins when the machine is quiet. Latency: all runtimes are up. Everything
// else: one at a time is up, alone in a process namespace with the registry and this program, so
// that every process that is not the payload is the runtime's. Whole clusters are measured once,
// one after the other.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// registryAddr is free: the program runs in a network namespace of its own.
const registryAddr = "127.0.0.1:5000"

type options struct {
	targets, parts, out, md     string
	runs, n, warm               int
	pods, crowd, clients        int
	seccomp, busy               bool
	cluster, scale, images, oci bool
	clusterFlags                string
	tiny, writers               int
}

func main() { os.Exit(testkit.Isolate(run)) }

func run() int {
	var o options
	flag.StringVar(&o.targets, "targets", "",
		"comma-separated: coracle, coracle+CNI, containerd+runc, containerd+crun, cri-o+crun (default: those that are installed); with "+
			"-cluster: coracle, upstream")
	flag.StringVar(&o.parts, "parts", "latency,memory,crowd,scale", "what is measured of runtimes, comma-separated")
	flag.IntVar(&o.runs, "runs", 5, "how often everything is measured")
	flag.IntVar(&o.n, "n", 0,
		"pods, one after another, per runtime and run (default 20); with -oci: runs of each command, a third of it with many "+
			"mounts (default 150)")
	flag.IntVar(&o.warm, "warmup", 3, "pods per runtime that are not counted")
	flag.IntVar(&o.pods, "pods", 50, "idle pods that memory is measured with")
	flag.IntVar(&o.crowd, "crowd", 100, "pods that are started at once")
	flag.IntVar(&o.clients, "clients", 10, "clients that start them")
	flag.BoolVar(&o.seccomp, "seccomp", false, "ask for the default seccomp profile, as a kubelet with seccompDefault does")
	flag.BoolVar(&o.busy, "busy", false, "measure on a machine that does other things, too")
	flag.BoolVar(&o.cluster, "cluster", false, "measure whole clusters instead of runtimes")
	flag.BoolVar(&o.scale, "scale", false,
		"measure whole clusters with 5,000 simulated nodes and 100,000 pods instead (-cluster-flags overrides it)")
	flag.StringVar(&o.clusterFlags, "cluster-flags", "", "flags for cluster-bench, which -cluster runs")
	flag.BoolVar(&o.oci, "oci", false, "measure one container instead: coracle-oci next to crun and runc, the engine next to libcontainer")
	flag.BoolVar(&o.images, "images", false, "measure pulling and unpacking images instead")
	flag.IntVar(&o.tiny, "tiny", 1000, "tiny images of -images")
	flag.IntVar(&o.writers, "writers", 0,
		"measure starts and execs next to this many containers that write empty lines, each with 5 % of a CPU")
	flag.StringVar(&o.out, "o", "", "write the figures as JSON to this file")
	flag.StringVar(&o.md, "md", "", "write the table into this Markdown page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if o.scale && o.md != "" {
		fmt.Fprintln(os.Stderr, "bench: -scale has no page: it prints its table")
		return 2
	}
	measure, n := benchmark, 20
	if o.cluster || o.scale {
		measure = benchmarkCluster
	}
	if o.images {
		measure = benchmarkImages
	}
	if o.writers > 0 {
		measure = benchmarkWriters
	}
	if o.oci {
		measure, n = benchmarkContainer, 150
	}
	o.n = cmp.Or(o.n, n)
	quiet.OnBusyMachine = o.busy
	err := quiet.Require(ctx)
	if err == nil {
		err = measure(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// benchmark measures runtimes, all of them or one at a time, which take turns.
func benchmark(ctx context.Context, o options) error {
	return withTargets(ctx, o, func(targets []*target) error {
		rep := reportOf(targets, o, page.Runtimes, map[string]any{
			"runs": o.runs, "n": o.n, "gone": gonePods, "pods": o.pods, "crowd": o.crowd, "clients": o.clients, "lists": lists,
			"window": quiet.Window, "busy": quiet.Busy, "seccomp": o.seccomp,
		})
		alone := func(measure func(context.Context, *target, options) error) func() error {
			return func() error {
				return inTurns(targets, o.runs, func(_ int, t *target) error { return measure(ctx, t, o) })
			}
		}
		parts := map[string]func() error{
			"latency": func() error { return measureLatency(ctx, targets, o) },
			"memory":  alone(measureMemory),
			"crowd":   alone(measureCrowd),
			"scale": func() error {
				return inTurns(targets, 1, func(_ int, t *target) error { return measureScale(ctx, t, o) })
			},
		}
		chosen := strings.Split(o.parts, ",")
		for _, part := range chosen {
			if parts[part] == nil {
				return fmt.Errorf("-parts %q: use latency, memory, crowd, scale", part)
			}
		}
		for _, part := range chosen {
			if err := parts[part](); err != nil {
				fmt.Fprintln(os.Stderr, "bench: not all has been measured; this was:")
				o.md = "" // the page has whole runs
				return errors.Join(fmt.Errorf("%s: %w", part, err), finishTargets(rep, targets, o))
			}
		}
		return finishTargets(rep, targets, o)
	})
}

// reportOf begins a report that compares runtimes.
func reportOf(targets []*target, o options, part page.Part, given map[string]any) *page.Report {
	var names []string
	for _, t := range targets {
		names = append(names, t.name)
	}
	return newReport(o, part, given, page.Compared(names))
}

// finishTargets finishes a report with the runtimes' figures.
func finishTargets(rep *page.Report, targets []*target, o options) error {
	for _, t := range targets {
		rep.Versions[t.name] = t.version
		rep.Figures = append(rep.Figures, t.figures...)
	}
	return finish(rep, o)
}

// withTargets calls measure with the runtimes on their own disk, and a registry that has the
// payload.
func withTargets(ctx context.Context, o options, measure func([]*target) error) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	if err := addUplink(); err != nil {
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
