package main

import (
	"fmt"
	"strings"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// rows are the table: one row per figure, one column per runtime, and how many
// times the first runtime's figure each other one is.
func rows(rep report) [][]string {
	c := compare("p50 / p99, ms", rep.Results, func(r *result) string { return r.Target })
	add := c.add
	if rep.Results[0].Latency != nil {
		for _, s := range steps {
			add(string(s), func(r *result) (float64, string) {
				l := r.Latency[s]
				return l.P50, fmt.Sprintf("%.1f / %.1f", l.P50, l.P99)
			})
		}
	}
	if m := rep.Results[0].Memory; m != nil {
		add(fmt.Sprintf("kB per idle pod, at %d", m.Pods), func(r *result) (float64, string) {
			return r.Memory.PerPod, fmt.Sprintf("%.0f", r.Memory.PerPod)
		})
		add(fmt.Sprintf("MB of the runtime at %d pods", m.Pods), func(r *result) (float64, string) {
			mb := float64(r.Memory.Busy) / 1024
			return mb, fmt.Sprintf("%.1f", mb)
		})
		add("MB RSS of the idle daemon", func(r *result) (float64, string) {
			mb := float64(r.Memory.DaemonIdle) / 1024
			return mb, fmt.Sprintf("%.1f", mb)
		})
	}
	if many := rep.Results[0].Crowd; many != nil {
		add(fmt.Sprintf("s to start %d pods by %d clients", many.Pods, many.Clients), func(r *result) (float64, string) {
			return r.Crowd.Seconds, fmt.Sprintf("%.1f", r.Crowd.Seconds)
		})
		add(fmt.Sprintf("s for %d pods' whole lives by %d clients", many.Pods, many.Clients), func(r *result) (float64, string) {
			return r.Crowd.Lives, fmt.Sprintf("%.1f", r.Crowd.Lives)
		})
		add(fmt.Sprintf("MB RSS of the daemon at %d pods", many.Pods), func(r *result) (float64, string) {
			mb := float64(r.Crowd.DaemonRSS) / 1024
			return mb, fmt.Sprintf("%.1f", mb)
		})
	}
	if s := rep.Results[0].Scale; s != nil {
		own := func(name string, value func(*scale) sample) {
			add(name, func(r *result) (float64, string) {
				if r.Scale == nil {
					return 0, "" // measured for the first only
				}
				v := value(r.Scale)
				return v.P50, fmt.Sprintf("%.1f / %.1f", v.P50, v.P99)
			})
		}
		own(fmt.Sprintf("pod start from %d pods on", s.Few), func(s *scale) sample { return s.FewStart })
		own(fmt.Sprintf("pod start from %d pods on", s.Many), func(s *scale) sample { return s.ManyStart })
		own(fmt.Sprintf("ListPodSandbox of %d", s.Listed), func(s *scale) sample { return s.ListPods })
		own(fmt.Sprintf("ListContainers of %d", s.Listed), func(s *scale) sample { return s.ListContainers })
	}
	return c.rows
}

// versions are those of the runtimes that were measured.
func (rep report) versions() (all [][2]string) {
	for _, r := range rep.Results {
		all = append(all, [2]string{r.Target, r.Version})
	}
	return all
}

// runtimesPage is the part of docs/benchmarks.md about runtimes.
func runtimesPage(rep report, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

One run, one machine, all runtimes taking turns. To repeat it:

    %s

(`+"`BENCH_FLAGS=-md=docs/benchmarks.md`"+` writes this page.) × says how many times Coracle's figure
that is.

`, rep.Command)
	b.WriteString(page.Table(rows(rep)))
	b.WriteString(rep.Machine.circumstances(rep.Date, rep.versions()))
	profile := "no seccomp profile (the kubelet's default)"
	if o.seccomp {
		profile = "the runtime's default seccomp profile"
	}
	fmt.Fprintf(&b, `
## What is measured

- The payload is a static program that waits for SIGTERM, in a pod of one container with %s, on a network with addresses handed out
  per node, masquerading and host ports (the pods publish none): Coracle's built-in one (routed links); for the peers the reference CNI
  plugins bridge and host-local with their nftables backends, and portmap for containerd (CRI-O maps host ports itself).
- What a runtime keeps for as long as the node runs is on a tmpfs, as /run is on a node with systemd; the
  rest is on a new ext4 that all share.
- Pod start: from the call of RunPodSandbox until StartContainer has returned. Stop + remove: StopContainer,
  RemoveContainer, StopPodSandbox, RemovePodSandbox. %d pods per runtime in %d rounds.
- Memory: PSS of all processes in a process namespace that holds one runtime, less the payload, at %d pods
  less that at none, divided by %d. Kernel memory is not in it.
- %d pods by %d clients: each client has a connection of its own and takes the next pod as soon as its last one runs;
  in whole lives, as soon as its last one has been stopped (without a grace) and removed.
- With many pods on the node only Coracle is measured: %d starts one after another when there are %d and %d pods, lists of %d.
`, profile, o.n*o.rounds, o.rounds, o.pods, o.pods, o.crowd, o.clients, starts, fewPods, manyPods, listedPods)
	return b.String()
}
