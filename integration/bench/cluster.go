package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/internal/testkit"
)

// nodeIP is an address that is not the loopback's, which kubelet and API server insist on.
const nodeIP = "10.99.0.1"

// figure and clusterOutput are what cluster-bench (cluster/bench) prints.
type figure struct {
	Stack string  `json:"stack"`
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	More  bool    `json:"more"` // more is better
}

type clusterOutput struct {
	Version string   `json:"version"`
	Figures []figure `json:"figures"`
}

type clusterReport struct {
	Date     string            `json:"date"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"` // and the load, by stack
	Figures  []figure          `json:"figures"`
}

// clusterStacks are the columns; one is up at a time.
var clusterStacks = []string{"coracle", "upstream"}

// benchmarkCluster measures whole clusters: Coracle's, and upstream's over containerd and runc.
func benchmarkCluster(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	registry, err := publish(ctx, dir)
	if err != nil {
		return err
	}
	defer registry.Close()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(nodeIP + "/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		return fmt.Errorf("address %s: %w", nodeIP, err)
	}
	flags := o.clusterFlags
	if o.scale {
		flags = "-only nodes,reads -nodes 5000 -pods 100000 " + flags
	}
	rep := clusterReport{Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine(o), Versions: map[string]string{}}
	for _, stack := range clusterStacks {
		if o.targets != "" && !slices.Contains(strings.Split(o.targets, ","), stack) {
			continue
		}
		if _, err := testkit.FindBin("peers", "bin", "kubelet"); err != nil && stack == "upstream" {
			fmt.Fprintln(os.Stderr, "bench: upstream's stack is left out: hack/peers/kube.sh builds it")
			continue
		}
		before := loadAverage()
		out, err := measureStack(ctx, stack, dir, flags)
		rep.Versions[stack] = fmt.Sprintf("%s, load %s before and %s after", out.Version, before, loadAverage())
		rep.Figures = append(rep.Figures, out.Figures...)
		if err != nil {
			fmt.Fprint(os.Stderr, "bench: not all has been measured; this was:\n", aligned(clusterRows(rep)))
			return fmt.Errorf("%s: %w\nlogs are in %s", stack, err, dir)
		}
	}
	rep.Machine.LoadAfter = loadAverage()
	fmt.Print(aligned(clusterRows(rep)))
	if o.md != "" {
		err = page.Write(o.md, page.Clusters, clusterPage(rep))
	}
	return errors.Join(err, writeJSON(o.out, rep), os.RemoveAll(dir))
}

// measureStack runs cluster-bench for one stack in a directory of its own.
func measureStack(ctx context.Context, stack, dir, flags string) (out clusterOutput, err error) {
	program, err := testkit.FindBin("test", "cluster-bench")
	if err != nil {
		return out, err
	}
	bin := filepath.Dir(filepath.Dir(program))
	cgroup := "coracle-" + filepath.Base(dir)
	defer func() {
		if err == nil { // after an error, what could not be removed is no news
			err = testkit.RemoveCgroups(cgroup)
		}
	}()
	dir = filepath.Join(dir, stack)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return out, err
	}
	argv := append([]string{
		program, "-stack", stack, "-dir", dir, "-bin", bin, "-ip", nodeIP, "-cgroup", cgroup, "-image", image,
	}, strings.Fields(flags)...)
	if stack == "coracle" {
		config := filepath.Join(dir, "coracled.toml")
		toml := fmt.Sprintf("[network]\ncni_conf_dir = %q\n[image.registry.%q]\nplain_http = true\n", filepath.Join(dir, "cni"), registryAddr)
		if err := os.WriteFile(config, []byte(toml), 0o600); err != nil {
			return out, err
		}
		argv = append(argv, "-config", config)
	} else {
		t := &target{
			name: stack, handler: "runc", dir: filepath.Join(filepath.Dir(dir), "t1"),
			launch: launchContainerd(filepath.Join(bin, "peers")),
		}
		if err := t.open(); err != nil {
			return out, err
		}
		defer func() { err = joinDown(err, t) }()
		// Volumes that kubelet mounts have to be seen by the runtime.
		argv = append([]string{"nsenter", "--mount", "--target", strconv.Itoa(t.pid())}, append(argv, "-cri", t.socket)...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Minute
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err := errors.Join(err, json.Unmarshal(raw, &out)); err != nil { // out has what was measured before
		return out, fmt.Errorf("cluster-bench: %w", err)
	}
	out.Version = "Kubernetes " + out.Version
	if stack == "coracle" { // and of which commit
		said, err := exec.CommandContext(ctx, filepath.Join(bin, "coracle-kube"), "--version").Output()
		if err != nil {
			return out, fmt.Errorf("coracle-kube --version: %w", err)
		}
		out.Version = strings.TrimSpace(string(said))
	}
	return out, nil
}

// clusterRows are the table, a row per figure in the order in which they were found.
func clusterRows(rep clusterReport) [][]string {
	all := [][]string{append(append([]string{""}, clusterStacks...), "×")}
	var names []string
	for _, f := range rep.Figures {
		if slices.Contains(names, f.Name) {
			continue
		}
		names = append(names, f.Name)
		row := []string{f.Name + ", " + f.Unit}
		values := map[string]float64{}
		for _, stack := range clusterStacks {
			cell := ""
			for _, g := range rep.Figures {
				if g.Name == f.Name && g.Stack == stack {
					values[stack], cell = g.Value, significant(g.Value)
				}
			}
			row = append(row, cell)
		}
		ours, theirs, ratio := values[clusterStacks[0]], values[clusterStacks[1]], ""
		if f.More {
			ours, theirs = theirs, ours
		}
		if ours > 0 && theirs > 0 {
			ratio = fmt.Sprintf("%.1f", theirs/ours)
		}
		all = append(all, append(row, ratio))
	}
	return all
}

// significant writes three digits at least, and no exponent.
func significant(v float64) string {
	digits := 0
	for limit := 100.0; digits < 2 && v < limit; limit /= 10 {
		digits++
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

func clusterPage(rep clusterReport) string {
	var b strings.Builder
	b.WriteString(string(page.Clusters) + "\n" + `
One run, one machine, first Coracle's cluster (` + "`coracle up`" + `), then upstream's own: etcd, kube-apiserver,
kube-controller-manager, kube-scheduler and kubelet over containerd and runc. To repeat it:

    make bench-cluster

(` + "`BENCH_FLAGS=-md=docs/benchmarks.md`" + ` writes this part of the page.) × says how many times better Coracle's figure is.

`)
	b.WriteString(clusterTable(rep))
	b.WriteString(`
- Cold start: nothing on disk, certificates included; the first pod's image comes from a registry on
  loopback. Coracle's time includes the start of its runtime; containerd runs before the clock does.
- Idle: control plane and kubelet without the runtime, one pod running, 20 seconds after the cold start.
- Upstream runs without leader election, and all clients' own limits are lifted.
- A pod's way: pods one at a time, median. What only one of the two can be asked is left out for the other.
- Deployment: until the last pod is Ready; until the last pod is gone from the API. Median of 5.
- API: pods that no scheduler cares for, protobuf, 20 clients.
- Simulated nodes are objects whose leases are renewed; 20 clients create the pods.
- Memory but for files: RssAnon of control plane and kubelet. The most is looked for twice a second while nodes are simulated. Then pods,
  nodes, leases and events are deleted, and it is read for ten minutes, or until it is at most 1.2 times what it was when idle.
- Scheduler alone: all pods wait before it starts; both schedulers run against kube-apiserver.
`)
	return b.String()
}

// clusterTable is the table, with which machine and programs it is of.
func clusterTable(rep clusterReport) string {
	var b strings.Builder
	b.WriteString(page.Table(clusterRows(rep)))
	fmt.Fprintf(&b, "\n%s.\n", rep.Machine.describe(rep.Date))
	for _, stack := range clusterStacks {
		if about := rep.Versions[stack]; about != "" {
			fmt.Fprintf(&b, "- %s: %s\n", stack, about)
		}
	}
	return b.String()
}
