package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// row is the result of a target.
type row struct {
	result string // passed or failed
	counts
	commit, tree, machine string
}

// counts are of tests, or of what else a target calls a case.
type counts struct{ passed, failed, skipped int }

const head = `# Status

What ` + "`make check-all`" + ` found, the last time that each target was run. ` + "`make check-all TARGETS='oracle fuzz'`" + ` runs
some and replaces their rows. ` + "`tree`" + ` is a hash of the files that the target covers (` + "`hack/status/targets.txt`" + `):
a row holds as long as they do not change. ` + "`make status`" + ` names the rows that do not, and ` + "`make release`" + ` fails
if there is one. Tests are counted at their top level; a target that does not count has zeros.

`

const header = "| target | result | passed | failed | skipped | commit | tree | machine |\n" +
	"| --- | --- | ---: | ---: | ---: | --- | --- | --- |\n"

func formatPage(targets []target, rows map[string]row) string {
	var b strings.Builder
	b.WriteString(head + header)
	var missing []string
	for _, t := range targets {
		r, ok := rows[t.name]
		if !ok {
			missing = append(missing, "`"+t.name+"`")
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %d | %d | %d | %s | %s | %s |\n", t.name, r.result, r.passed, r.failed, r.skipped,
			r.commit, r.tree, r.machine)
	}
	if len(missing) > 0 {
		b.WriteString("\n## Not run yet\n\n")
		for _, name := range missing {
			fmt.Fprintf(&b, "- %s\n", name)
		}
	}
	return b.String()
}

func readPage(path string) (map[string]row, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]row{}, nil
	}
	if err != nil {
		return nil, err
	}
	return parsePage(string(text))
}

func parsePage(text string) (map[string]row, error) {
	rows := map[string]row{}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), " | ")
		name, ok := strings.CutPrefix(f[0], "| `")
		if !ok {
			continue
		}
		if len(f) != 8 {
			return nil, fmt.Errorf("%s: %q has not 8 columns", page, line)
		}
		r := row{result: f[1], commit: f[5], tree: f[6], machine: strings.TrimSuffix(f[7], " |")}
		for i, n := range []*int{&r.passed, &r.failed, &r.skipped} {
			v, err := strconv.Atoi(f[2+i])
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", page, line, err)
			}
			*n = v
		}
		rows[strings.TrimSuffix(name, "`")] = r
	}
	return rows, nil
}

// Ways in which test programs say how a case, or all, ended.
var (
	colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)
	goTest  = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): `)
	tap     = regexp.MustCompile(`(?mi)^(ok|not ok) \d+\b([^\n]*# skip)?`)
	summary = regexp.MustCompile(`(\d+) (?i:passed)\W+(\d+) (?i:failed)(?:\W+\d+ (?i:pending))?(?:\W+(\d+) (?i:skipped))?`)
)

// count adds up what the output of a target says.
func count(output string) (c counts) {
	output = colours.ReplaceAllString(output, "")
	for _, m := range goTest.FindAllStringSubmatch(output, -1) {
		switch m[1] {
		case "PASS":
			c.passed++
		case "FAIL":
			c.failed++
		case "SKIP":
			c.skipped++
		}
	}
	for _, m := range tap.FindAllStringSubmatch(output, -1) {
		switch {
		case m[2] != "":
			c.skipped++
		case strings.EqualFold(m[1], "ok"):
			c.passed++
		default:
			c.failed++
		}
	}
	for _, m := range summary.FindAllStringSubmatch(output, -1) {
		for i, n := range []*int{&c.passed, &c.failed, &c.skipped} {
			if v, err := strconv.Atoi(m[1+i]); err == nil {
				*n += v
			}
		}
	}
	return c
}

// machine describes where a target ran: what results depend on, and no name.
func machine() string {
	var u unix.Utsname
	release := "?"
	if unix.Uname(&u) == nil {
		release, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	}
	var s unix.Sysinfo_t
	_ = unix.Sysinfo(&s)
	cgroups := "v1"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroups = "v2"
	}
	return fmt.Sprintf("Linux %s, %s, %d CPUs, %d GiB, cgroup %s", release, runtime.GOARCH, runtime.NumCPU(),
		(s.Totalram*uint64(s.Unit)+1<<29)>>30, cgroups)
}
