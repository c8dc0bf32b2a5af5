package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	"github.com/coracle-project/coracle/cmd/coracle/usage"
)

// order is what the lines of top are sorted by.
type order string

const (
	byCPU    order = "cores"
	byMemory order = "memory"
	byName   order = "name"
)

// topView is what is seen of usage: text, made of readings and of what was pressed so far.
type topView struct {
	pods bool // instead of containers
	by   order
	// missing says which of several nodes have not answered.
	missing error
}

// interrupt is Ctrl-C, which is a key as any other on a raw terminal.
const interrupt = 3

// press changes the view; false means that the user wants to leave.
func (v *topView) press(key byte) bool {
	switch key {
	case 'q', interrupt:
		return false
	case 'c':
		v.by = byCPU
	case 'm':
		v.by = byMemory
	case 'n':
		v.by = byName
	case 'p':
		v.pods = !v.pods
	}
	return true
}

// text is a summary and a table.
func (v *topView) text(all []usage.Usage) string {
	var shown []usage.Usage
	var pods, containers int
	var cores float64
	var memory uint64
	for _, u := range all {
		if u.Container == "" {
			pods++
			memory += u.Memory
			if u.CPU != nil {
				cores += *u.CPU
			}
		} else {
			containers++
		}
		if (u.Container == "") == v.pods {
			u.Namespace, u.Pod, u.Container = output.OneLine(u.Namespace, 40), output.OneLine(u.Pod, 60), output.OneLine(u.Container, 40)
			shown = append(shown, u)
		}
	}
	slices.SortStableFunc(shown, func(a, b usage.Usage) int {
		switch v.by {
		case byCPU:
			return -cmp.Compare(known(a.CPU), known(b.CPU))
		case byMemory:
			return -cmp.Compare(a.Memory, b.Memory)
		case byName:
		}
		return 0 // they come in the order of their names
	})
	var b strings.Builder
	fmt.Fprintf(&b, "pods %d, containers %d, cores %.3f, memory %s; by %s\n\n", pods, containers, cores, output.Size(int64(memory)), v.by)
	if v.missing != nil {
		fmt.Fprintf(&b, "not shown: %s\n\n", output.OneLine(v.missing.Error(), 160))
	}
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	statsRows(w, shown, v.pods)
	_ = w.Flush() // into memory
	return strings.TrimSuffix(b.String(), "\n")
}

func known(f *float64) float64 {
	if f == nil {
		return -1
	}
	return *f
}

// screen is text for a terminal of a size, with what moves the cursor and wipes what was there.
func (v *topView) screen(all []usage.Usage, width, height int) string {
	lines := strings.Split(v.text(all), "\n")
	help := "c cores  m memory  n name  p pods  q quit"
	if v.pods {
		help = strings.Replace(help, "p pods", "p containers", 1)
	}
	if room := max(height-1, 1); len(lines) > room {
		lines = lines[:room]
	}
	lines = append(lines, help)
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, l := range lines {
		if r := []rune(l); len(r) > width {
			l = string(r[:width])
		}
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(l + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.String()
}
