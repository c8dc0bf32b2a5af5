//go:build cgo

package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
)

// report is all that was measured.
type report struct {
	commands, commandsMany []sample
	engines, enginesMany   []engineFigures
	steps                  []step
	sizes                  map[string]int64
	machine                string
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

func median(d []time.Duration) time.Duration { return d[len(d)/2] }

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `%s

One run, one machine, all programs taking turns. To repeat it, and write this part of the page:

    make bench-oci

`, page.Container)
	b.WriteString(page.Table(r.commandRows()))
	b.WriteString("\n" + r.machine + ".\n")
	fmt.Fprintf(&b, `
- %s of busybox's true, one bundle and one cgroup path for all, from fork to the end of the command. p10, p50: of %d runs, %d with %d
  more mounts on the host. CPU: user and system time of the command and all that it has waited for, mean. × is p50 against crun's
  with the same profile.
- The floor makes a cgroup in every hierarchy but cpuset, all namespaces, a mount of proc, pivots, executes and cleans up.
- Sizes: %s.

In process, as in the shim, with the default seccomp profile, in turns with the mounts and without; medians:

`, "`run`", len(r.commands[0].wall), len(r.commandsMany[0].wall), manyMounts, r.sizesText())
	b.WriteString(page.Table(r.engineRows()))
	fmt.Fprintf(&b, `
- The process that starts containers has %d kB (PSS).
- The starter's mount namespace has none of the host's mounts, so that starts in process do not depend on how many there are:
  they take as much CPU time with %d more. But of what is bound with all below it (rbind, and a root
  file system), and is a directory and no mount, the kernel looks at all mounts of the file system that it is in: 0.15 µs each (open_tree(2)).
- %s has a starter for each container that it makes, which has to copy the host's mounts and let them go, 1 to 2 µs each: the kernel
  had no way to an empty mount namespace before OPEN_TREE_NAMESPACE (Linux 7.0).
`, r.engines[0].starterPSS, manyMounts, "`coracle-oci`")
	b.WriteString("\nWhere the time of `coracle-oci run` goes (`--trace-steps`, default seccomp profile, medians; steps below 10 µs are left out):\n\n")
	b.WriteString(page.Table(r.stepRows()))
	return b.String()
}

func (r *report) commandRows() [][]string {
	rows := [][]string{{"ms", "p10", "p50", "× crun", "CPU", fmt.Sprintf("p50, %d mounts", manyMounts), "× crun"}}
	for i := range r.commands {
		s, many := &r.commands[i], &r.commandsMany[i]
		rows = append(rows, []string{
			s.name, ms(s.at(0.1)), ms(s.at(0.5)), toCrun(r.commands, s), ms(s.cpu), ms(many.at(0.5)), toCrun(r.commandsMany, many),
		})
	}
	return rows
}

// toCrun compares a runtime with crun.
func toCrun(all []sample, s *sample) string {
	_, profile, isRuntime := strings.Cut(s.name, ", ")
	for i := range all {
		if isRuntime && all[i].name == "crun, "+profile {
			return fmt.Sprintf("%.2f", float64(s.at(0.5))/float64(all[i].at(0.5)))
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
	add("create, start, exit seen", func(f *engineFigures) string { return ms(median(f.exited)) })
	add("… and deleted", func(f *engineFigures) string { return ms(median(f.deleted)) })
	add("exec of true, exit seen", func(f *engineFigures) string { return ms(median(f.exec)) })
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

// machine describes this one, and how busy it was.
func machine(before string) string {
	var u unix.Utsname
	_ = unix.Uname(&u) // which cannot fail
	return fmt.Sprintf("%s, %d CPUs, Linux %s, load %s before and %s after",
		time.Now().Format(time.DateOnly), cpus(), unix.ByteSliceToString(u.Release[:]), before, load())
}

// load is the load average of the last minute.
func load() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(raw), " ")
	return first
}
