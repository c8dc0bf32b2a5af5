package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
)

// rows are the table: one row per figure, one column per runtime, and how many
// times the first runtime's figure each other one is.
func rows(rep report) [][]string {
	head := []string{"p50 / p99, ms"}
	for i, r := range rep.Results {
		head = append(head, r.Target)
		if i > 0 {
			head = append(head, "×")
		}
	}
	all := [][]string{head}
	add := func(name string, value func(*result) (float64, string)) {
		row := []string{name}
		var first float64
		for i, r := range rep.Results {
			v, text := value(r)
			row = append(row, text)
			if i == 0 {
				first = v
				continue
			}
			ratio := "–"
			if first > 0 && v > 0 {
				ratio = fmt.Sprintf("%.1f", v/first)
			}
			row = append(row, ratio)
		}
		all = append(all, row)
	}
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
	return all
}

// aligned is a table for a terminal.
func aligned(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	return b.String()
}

// markdown is a table in Markdown.
func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "| --- |%s\n", strings.Repeat(" ---: |", len(row)-1))
		}
	}
	return b.String()
}

// writePage writes one of the two parts of a page and keeps the other: that about clusters begins
// with the line clusterPart.
func writePage(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	runtimes, clusters, found := strings.Cut(string(old), clusterPart)
	if strings.HasPrefix(text, clusterPart) {
		text = strings.TrimRight(runtimes, "\n") + "\n\n" + text
	} else if found {
		text += "\n" + clusterPart + clusters
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// describe is a sentence about a machine, without its end.
func (m machine) describe(date string) string {
	return fmt.Sprintf("%s, %d CPUs (%s), Linux %s", date, m.CPUs, m.Model, m.Kernel)
}

// page is the part of docs/benchmarks.md about runtimes.
func page(rep report, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Benchmarks

One run, one machine, all runtimes taking turns. To repeat it:

    %s

(`+"`BENCH_FLAGS=-md=docs/benchmarks.md`"+` writes this page.) × says how many times Coracle's figure
that is.

`, rep.Command)
	b.WriteString(markdown(rows(rep)))
	fmt.Fprintf(&b, "\n%s, load %s before and %s after.\n", rep.Machine.describe(rep.Date), rep.Machine.LoadBefore, rep.Machine.LoadAfter)
	for _, r := range rep.Results {
		if r.Version != "" {
			fmt.Fprintf(&b, "- %s: %s\n", r.Target, r.Version)
		}
	}
	profile := "no seccomp profile (the kubelet's default)"
	if o.seccomp {
		profile = "the runtime's default seccomp profile"
	}
	fmt.Fprintf(&b, `
## What is measured

- The payload is a static program that waits for SIGTERM, in a pod of one container with %s, on a bridge network with addresses handed out
  per node, masquerading and host ports (the pods publish none): Coracle's built-in one; for the peers the reference CNI
  plugins bridge and host-local with their nftables backends, and portmap for containerd (CRI-O maps host ports itself).
- Pod start: from the call of RunPodSandbox until StartContainer has returned. Stop + remove: StopContainer,
  RemoveContainer, StopPodSandbox, RemovePodSandbox. %d pods per runtime in %d rounds.
- Memory: PSS of all processes in a process namespace that holds one runtime, less the payload, at %d pods
  less that at none, divided by %d. Kernel memory is not in it.
`, profile, o.n*o.rounds, o.rounds, o.pods, o.pods)
	return b.String()
}
