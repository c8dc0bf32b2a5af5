package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
)

// report is what -o writes.
type report struct {
	Date    string   `json:"date"`
	Machine machine  `json:"machine"`
	Results []result `json:"results"`

	targets []*target
}

// result is one runtime's figures.
type result struct {
	Target  string               `json:"target"`
	Version string               `json:"version"`
	Values  map[string][]float64 `json:"values"`
}

type machine struct {
	CPUs       int    `json:"cpus"`
	Model      string `json:"cpu_model"`
	Kernel     string `json:"kernel"`
	Busy       bool   `json:"busy"` // with other things, too
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

func newReport(targets []*target, o options) *report {
	return &report{Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine(o), targets: targets}
}

// finish prints the table, and writes the page's part and the figures where they are asked for.
func (rep *report) finish(o options, part page.Part, text func() string) error {
	rep.Machine.LoadAfter = loadAverage()
	for _, t := range rep.targets {
		rep.Results = append(rep.Results, result{t.name, t.version, t.figures.Values})
	}
	fmt.Print(aligned(rep.table()))
	if o.md != "" {
		if err := page.Write(o.md, part, text()); err != nil {
			return err
		}
	}
	return writeJSON(o.out, rep)
}

// writeJSON writes a report to a file, if it has a name.
func writeJSON(file string, report any) error {
	if file == "" {
		return nil
	}
	raw, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644)
}

// table compares the runtimes.
func (rep *report) table() [][]string {
	var names []string
	var of []*figures
	for _, t := range rep.targets {
		names, of = append(names, t.name), append(of, &t.figures)
	}
	return table("median (lowest–highest)", names, of)
}

// circumstances are the lines below a table: the machine, and what version each runtime is.
func (rep *report) circumstances() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s.\n", rep.Machine.describe(rep.Date))
	for _, r := range rep.Results {
		fmt.Fprintf(&b, "- %s: %s\n", r.Target, r.Version)
	}
	return b.String()
}

// describe is a sentence about a machine, without its end.
func (m machine) describe(date string) string {
	text := fmt.Sprintf("%s, %d CPUs (%s), Linux %s, load %s before and %s after", date, m.CPUs, m.Model, m.Kernel, m.LoadBefore, m.LoadAfter)
	if m.Busy {
		text += "; the machine did other things, too"
	}
	return text
}

// runtimesPage is the part of docs/benchmarks.md about runtimes.
func runtimesPage(rep *report, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

One machine, all runtimes in turns, and each time another one first; %d runs. To repeat it:

    make bench-peers bench

(`+"`BENCH_FLAGS=-md=docs/benchmarks.md`"+` writes this page.) × says how many times Coracle's figure
that is.

`, o.runs)
	b.WriteString(page.Table(rep.table()))
	b.WriteString(rep.circumstances())
	profile := "no seccomp profile (the kubelet's default)"
	if o.seccomp {
		profile = "the runtime's default seccomp profile"
	}
	fmt.Fprintf(&b, `
## What is measured

- A turn begins when the machine has been quiet for %s (less than %.2f of a CPU in use) and what was written is on
  disk. A machine that is busy from the start is refused.
- The payload is a static program that waits for SIGTERM, in a pod of one container with %s, on a network with addresses handed out
  per node, masquerading and host ports (the pods publish none): Coracle's built-in one (routed links); in the column +CNI, and for
  the peers, the reference CNI plugins bridge and host-local with their nftables backends, and portmap (CRI-O maps host ports itself).
- What a runtime keeps for as long as the node runs is on a tmpfs, as /run is on a node with systemd; the
  rest is on a new ext4 that all share.
- Pod start: from the call of RunPodSandbox until StartContainer has returned; the median of %d pods, one after another, in each run.
  Stop + remove: StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox.
- Asynchronous: when these calls have returned, the kernel still takes a pod's network namespace apart, with all runtimes. Coracle
  also undoes the network behind its answer: the link goes with the namespace, or the plugins are called. The peers' plugins
  have ended. The row "until nothing is left" ends when no process, mount, cgroup, link, route or file of the pod is there any more (median of
  %d pods in each run; true to some milliseconds).
- Memory: PSS of all processes in a process namespace that holds one runtime, less the payload, at %d pods
  less that at none, divided by %d. Kernel memory is not in it.
- %d pods by %d clients: each client has a connection of its own and takes the next pod as soon as its last one runs;
  in whole lives, as soon as its last one has been stopped (without a grace) and removed.
- Among many pods: one runtime after another fills the node once, and its runs follow each other. Of a list, the median of %d calls in each run.
  A runtime that does not come to rest among them is measured while it works on its own: the row "CPUs in use at rest" says how much.
`, quiet.Window, quiet.Busy, profile, o.n, gonePods, o.pods, o.pods, o.crowd, o.clients, lists)
	return b.String()
}

func thisMachine(o options) machine {
	m := machine{CPUs: cpus, Busy: o.busy, LoadBefore: loadAverage()}
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
