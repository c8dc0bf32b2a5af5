//go:build cgo

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// report is all that was measured.
type report struct {
	commands, commandsInRow, commandsMany []sample
	engines, enginesMany                  []engineFigures
	steps                                 []step
	sizes                                 map[string]int64
	machine                               string
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// spread is the median of sorted times, and in brackets what one in ten is below and above.
func spread(d []time.Duration) string {
	last := len(d) - 1
	return fmt.Sprintf("%s (%s–%s)", ms(d[last/2]), ms(d[last/10]), ms(d[last*9/10]))
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `%s

One run, one machine, all programs taking turns. To repeat it, and write this part of the page:

    make bench-oci

`, page.Container)
	b.WriteString(page.Table(r.commandRows()))
	b.WriteString("\n" + r.machine + ".\n")
	fmt.Fprintf(&b, `
- %s of busybox's true, one bundle and one cgroup path for all, from fork to the end of the command. Of %d runs, %d with %d
  more mounts on the host. CPU: user and system time of the command and all that it has waited for, mean. × is against crun's
  with the same profile.
- In turns, all others run between two runs of one program; in a loop, each runs %d times in a row, in %d turns. What comes
  after a pause can cost more: the kernel waits for other CPUs (RCU) when the first process is moved between cgroups of version 1.
- The floor makes a cgroup in every hierarchy but cpuset, all namespaces, a mount of proc, pivots, executes and cleans up.
- Sizes: %s.

In process, as in the shim, with the default seccomp profile, in turns with the mounts and without; medians, p10 and p90 in brackets:

`, "`run`", len(r.commands[0].wall), len(r.commandsMany[0].wall), manyMounts,
		len(r.commandsInRow[0].wall)/turns, turns, r.sizesText())
	b.WriteString(page.Table(r.engineRows()))
	fmt.Fprintf(&b, `
- The process that starts containers has %d kB (PSS).
- The starter's mount namespace has none of the host's mounts, so that starts in process do not depend on how many there are:
  they take as much CPU time with %d more. But of what is bound with all below it (rbind, and a root
  file system), and is a directory and no mount, the kernel looks at all mounts of the file system that it is in: 0.15 µs each (open_tree(2)).
- %s has a starter for each container that it makes, which has to copy the host's mounts and let them go, 1 to 2 µs each: the kernel
  had no way to an empty mount namespace before OPEN_TREE_NAMESPACE (Linux 7.0).
`, r.engines[0].starterPSS, manyMounts, "`coracle-oci`")
	b.WriteString(
		"\nWhere the time of `coracle-oci run` goes (`--trace-steps`, default seccomp profile, medians; steps below 10 µs are left out):\n\n",
	)
	b.WriteString(page.Table(r.stepRows()))
	return b.String()
}

func (r *report) commandRows() [][]string {
	many := fmt.Sprintf("p50, %d mounts", manyMounts)
	rows := [][]string{{"ms", "in turns: p10", "p50", "×", "CPU", "×", "in a loop: p10", "p50", "×", "CPU", "×", many, "×"}}
	p50 := func(s *sample) time.Duration { return s.at(0.5) }
	cpu := func(s *sample) time.Duration { return s.cpu }
	for i := range r.commands {
		row := []string{r.commands[i].name}
		for _, all := range [][]sample{r.commands, r.commandsInRow} {
			s := &all[i]
			row = append(row, ms(s.at(0.1)), ms(p50(s)), toCrun(all, s, p50), ms(s.cpu), toCrun(all, s, cpu))
		}
		s := &r.commandsMany[i]
		rows = append(rows, append(row, ms(p50(s)), toCrun(r.commandsMany, s, p50)))
	}
	return rows
}

// toCrun compares a runtime with crun.
func toCrun(all []sample, s *sample, value func(*sample) time.Duration) string {
	_, profile, isRuntime := strings.Cut(s.name, ", ")
	for i := range all {
		if isRuntime && all[i].name == "crun, "+profile {
			return fmt.Sprintf("%.2f", float64(value(s))/float64(value(&all[i])))
		}
	}
	return ""
}

func (r *report) engineRows() [][]string {
	rows := [][]string{{"ms"}}
	add := func(name string, value func(*engineFigures) string) {
		row := []string{name}
		for _, list := range [][]engineFigures{r.engines, r.enginesMany} {
			for i := range list {
				row = append(row, value(&list[i]))
			}
		}
		rows = append(rows, row)
	}
	for _, where := range []string{"", fmt.Sprintf(", %d mounts", manyMounts)} {
		for i := range r.engines {
			rows[0] = append(rows[0], r.engines[i].name+where)
		}
	}
	add("create, start, exit seen", func(f *engineFigures) string { return spread(f.exited) })
	add("… and deleted", func(f *engineFigures) string { return spread(f.deleted) })
	add("exec of true, exit seen", func(f *engineFigures) string { return spread(f.exec) })
	add(fmt.Sprintf("containers/s, %d callers", callers), func(f *engineFigures) string { return fmt.Sprintf("%.0f", f.perSecond()) })
	return rows
}

func (r *report) stepRows() [][]string {
	const least = 10 * time.Microsecond
	rows := [][]string{{"step", "µs"}}
	for _, s := range r.steps {
		if s.median < least {
			continue
		}
		rows = append(rows, []string{strings.Repeat("&nbsp; ", s.depth) + s.what, fmt.Sprint(s.median.Microseconds())})
	}
	return rows
}

func (r *report) sizesText() string {
	var list []string
	for _, name := range []string{"coracle-oci", "crun", "runc"} {
		if size, ok := r.sizes[name]; ok {
			list = append(list, fmt.Sprintf("%s %.1f MB", name, float64(size)/1e6))
		}
	}
	return strings.Join(list, ", ")
}

// machine describes this one, how busy it was, and what was measured.
func machine(bin, before string) (string, error) {
	var u unix.Utsname
	_ = unix.Uname(&u) // which cannot fail
	text := fmt.Sprintf("%s, %d CPUs, Linux %s, load %s before and %s after",
		time.Now().Format(time.DateOnly), cpus(), unix.ByteSliceToString(u.Release[:]), before, load())
	for _, program := range []string{"coracle-oci", "peers/bin/crun", "peers/bin/runc"} {
		out, err := exec.Command(filepath.Join(bin, program), "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", program, err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		text += "; " + first
	}
	return text, nil
}

// load is the load average of the last minute.
func load() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
