package crashmatrix

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const pageHead = `# Crash matrix

What is lost if something fails at a place between two side effects ([fault
points](../internal/fault/fault.go)) that an operation passes. Made by ` + "`make crash-matrix`" + `; a sample of it
is part of ` + "`make test`" + `.

In each cell a client repeats an operation until it succeeds. A real fault happens once, in the
process that passes the point, or to another process at that moment. Meanwhile another pod's
container writes a numbered line every 5 ms. Nothing is lost if both containers' logs have every
line once, their exit statuses are right, the other container is the same process all the time, the
client succeeds, and no process, mount, cgroup, link, file or descriptor is left behind.

| fault | what happens at the point |
| --- | --- |
| kill | the process that passes it gets SIGKILL |
| error | its next step fails |
| hang | it stops there; meanwhile other pods start, run and end, and lists work |
| no room in state, in root | the file system is full until the client's first try has ended |
| no descriptors | the process cannot open anything until then |
| kill keeper, starter, shim, daemon | another process gets SIGKILL |
| kill keeper and shim | both get SIGKILL |

## Known limits

- When keeper and shim die at the same instant, a container with a terminal gets a hang-up, because
  no process holds the terminal's other side. Containers without a terminal keep running.
`

// writePage writes the results.
func writePage(t *testing.T, path string, all []result) {
	t.Helper()
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		t.Fatal(err)
	}
	release := strings.SplitN(unix.ByteSliceToString(host.Release[:]), ".", 3)
	bad, known := 0, 0
	for _, r := range all {
		switch {
		case r.lost == nil:
		case r.limit() != "":
			known++
		default:
			bad++
		}
	}
	var b strings.Builder
	b.WriteString(pageHead)
	for _, l := range limits {
		fmt.Fprintf(&b, "- %s\n", l.says)
	}
	fmt.Fprintf(&b, "\n## Results\n\nLinux %s, %d cells: nothing lost in %d, a known limit in %d, another loss in %d.\n",
		strings.Join(release[:2], "."), len(all), len(all)-bad-known, known, bad)
	for _, op := range operations {
		if op.skip != nil && op.skip() != "" {
			fmt.Fprintf(&b, "Skipped: %s (%s).\n", op.name, op.skip())
		}
	}
	b.WriteString("\n| operation | point | faults | lost |\n| --- | --- | --- | --- |\n")
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].row.op.name == all[0].row.op.name && all[n].row.point == all[0].row.point {
			n++
		}
		writeRow(&b, all[:n])
		all = all[n:]
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeRow writes the results of an operation and a point: one line, and one for each loss.
func writeRow(b *strings.Builder, all []result) {
	var good []string
	for _, r := range all {
		if r.lost == nil {
			good = append(good, r.kind.name)
		}
	}
	r := all[0].row
	if len(good) > 0 {
		faults := strings.Join(good, ", ")
		if len(good) == len(all) {
			faults = fmt.Sprintf("all %d", len(all))
		}
		fmt.Fprintf(b, "| %s | %s | %s | nothing |\n", r.op.name, r.point, faults)
	}
	for _, res := range all {
		if res.lost != nil {
			what := res.limit()
			if what == "" {
				what = "**" + oneLine(res.lost) + "**"
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s |\n", r.op.name, r.point, res.kind.name, what)
		}
	}
}

// varying are the parts of an error that differ in each run.
var varying = regexp.MustCompile(`/tmp/coracle-[0-9]+|[0-9a-f]{64}|process [0-9]+|[A-Z0-9]{26}|[0-9]{6,}`)

// oneLine makes an error fit into a table.
func oneLine(err error) string {
	s := varying.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "…")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return strings.ReplaceAll(s, "|", "/")
}
