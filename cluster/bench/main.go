// Command bench measures one Kubernetes on this machine from the outside, with client-go, and
// prints what it found as JSON. `bin/test/bench -cluster` runs it for Coracle and for upstream's
// own stack, in namespaces where ports and processes are theirs alone, and makes the table.
//
//	cluster-bench -stack coracle -dir DIR -config coracled.toml -image REF
//	cluster-bench -stack upstream -dir DIR -cri SOCKET -image REF
//
// The stack is started from nothing and ended again. Nothing here is an assertion: a slow stack
// gives bad figures, not an error.
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
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// clientGarbage is the percentage of garbage that this process gathers before it collects: the
// clients share the machine with what they measure.
const clientGarbage = 1000

// figure is one row's value in one stack's column.
type figure struct {
	Stack string  `json:"stack"`
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	// More is whether more is better.
	More bool `json:"more,omitempty"`
}

type output struct {
	Version string   `json:"version"`
	Figures []figure `json:"figures"`
}

type settings struct {
	dir, bin    string
	socket      string // the runtime's, for upstream; Coracle starts its own
	config      string // coracled's
	image       string
	ip          string // of the node, on an interface
	cgroup      string // parent of all pods' cgroups
	only        string
	rounds      int
	replicas    int
	creates     int
	nodes, pods int
}

// bench is one run.
type bench struct {
	settings
	name  string
	stack stack
	kube  kubernetes.Interface
	out   output
	// idleMemory and peakMemory are what anonymous said before load and under the heaviest.
	idleMemory, peakMemory int64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster-bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	var b bench
	flag.StringVar(&b.name, "stack", "coracle", "coracle or upstream")
	flag.StringVar(&b.dir, "dir", "", "empty directory for all that is made")
	flag.StringVar(&b.bin, "bin", "bin", "directory of coracle and coracle-kube, with upstream's in peers/bin")
	flag.StringVar(&b.socket, "cri", "", "socket of the runtime that upstream's kubelet uses")
	flag.StringVar(&b.config, "config", "", "coracled's configuration")
	flag.StringVar(&b.image, "image", "", "image of the pods; its /pause ends on SIGTERM")
	flag.StringVar(&b.ip, "ip", "", "address of this node, which an interface has")
	flag.StringVar(&b.cgroup, "cgroup", "coracle-bench", "cgroup that pods' cgroups are made in")
	flag.StringVar(&b.only, "only", "",
		"comma-separated: idle, deployment, way, creates, nodes, memory, which needs nodes, reads, which needs nodes and "+
			"leaves out what comes after (default: all but reads)")
	flag.IntVar(&b.rounds, "rounds", 5, "how often what is quick is repeated; the median counts")
	flag.IntVar(&b.replicas, "replicas", 20, "pods of the Deployment")
	flag.IntVar(&b.creates, "creates", 2000, "pods created in a round")
	flag.IntVar(&b.nodes, "nodes", 1000, "simulated nodes")
	flag.IntVar(&b.pods, "pods", 5000, "pods scheduled onto them")
	flag.Parse()
	klog.SetOutput(os.Stderr)
	debug.SetGCPercent(clientGarbage)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}
	switch b.name {
	case "coracle":
		b.stack = &coracle{settings: b.settings}
	case "upstream":
		b.stack = &upstream{settings: b.settings, fail: fail}
	default:
		return fmt.Errorf("-stack %q is neither coracle nor upstream", b.name)
	}
	if err = b.measure(ctx); err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	err = errors.Join(err, b.stack.stop())
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(b.out)) // after an error, what was measured before
}

// measure runs the phases in an order in which none spoils the next: what is idle is looked at
// before the API server has been under load.
func (b *bench) measure(ctx context.Context) error {
	phases := []struct {
		name string
		run  func(context.Context) error
	}{
		{"cold", b.coldStart},
		{"idle", b.idle},
		{"memory", b.beforeBurst},
		{"way", b.way},
		{"deployment", b.deployment},
		{"creates", b.createRate},
		{"nodes", b.simulated},
		{"memory", b.afterBurst},
	}
	for _, p := range phases {
		if b.only != "" && p.name != "cold" && !b.asked(p.name) {
			continue
		}
		if err := p.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// asked reports whether -only names a phase.
func (b *bench) asked(phase string) bool { return slices.Contains(strings.Split(b.only, ","), phase) }

// found notes a figure, and prints it.
func (b *bench) found(f figure) {
	if f.Stack == "" {
		f.Stack = b.name
	}
	fmt.Fprintf(os.Stderr, "cluster-bench: %s: %s: %.4g %s\n", f.Stack, f.Name, f.Value, f.Unit)
	b.out.Figures = append(b.out.Figures, f)
}

// say prints what is no figure.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "cluster-bench: %s: %s\n", b.name, fmt.Sprintf(format, args...))
}

func (b *bench) took(name string, d time.Duration) {
	b.found(figure{Name: name, Unit: "s", Value: d.Seconds()})
}

func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
