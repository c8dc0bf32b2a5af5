package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/coracle-project/coracle/runtime/plan"
)

// Write prints the explanation for people: sections in the order in which things are done,
// warnings last, where a terminal shows them.
func (e *Document) Write(out io.Writer) error {
	t := table{w: tabwriter.NewWriter(out, 0, 1, 2, ' ', 0)}
	t.row("bundle", e.Bundle)
	t.row("engine", e.Engine)
	if e.Because != "" {
		t.row("", "because: "+e.Because)
	}

	t.section("namespaces")
	for _, n := range e.Namespaces {
		of := map[string]string{"new": "new", "joined": "joined " + n.Path, "host": "the host's"}[n.Of]
		t.row(n.Type, of)
	}
	if e.Mappings != nil {
		t.row("uids", ids(e.Mappings.UIDs))
		t.row("gids", ids(e.Mappings.GIDs))
	}

	t.section("cgroup (version " + fmt.Sprint(e.Cgroup.Version) + ")")
	for _, p := range e.Cgroup.Paths {
		t.row("in", p)
	}
	t.settings(e.Cgroup.Limits)
	for _, d := range e.Cgroup.Devices {
		t.row("devices", d)
	}

	t.section("files")
	access := "writable"
	if e.Root.Readonly {
		access = "read-only"
	}
	t.row("/", "root", e.Root.Path, access+","+e.Root.Propagation)
	for _, m := range e.Mounts {
		t.row(m.Target, m.Type, m.Source, strings.Join(m.Options, ","))
	}
	for _, d := range e.Devices {
		t.row(d.Path, "device", d.What)
	}
	for _, l := range e.Links {
		t.row(l.Path, "link", l.To)
	}
	for _, p := range e.Readonly {
		t.row(p, "read-only")
	}
	for _, p := range e.Masked {
		t.row(p, "masked")
	}

	t.section("kernel")
	t.settings(e.Kernel)
	e.Process.write(&t)
	e.Seccomp.write(&t)
	t.section("hooks")
	for _, h := range e.Hooks {
		t.row(h.When, strings.Join(append([]string{h.Path}, h.Args[min(1, len(h.Args)):]...), " "))
	}
	t.section("warnings")
	for _, w := range e.Warnings {
		t.row(w.Level, w.Field+": "+w.Problem)
		t.row("", "why: "+w.Why)
		t.row("", "instead: "+w.Instead)
	}
	t.end()
	return t.err
}

func (s *Seccomp) write(t *table) {
	t.section("seccomp")
	if s == nil {
		t.row("none")
		return
	}
	t.row("default", s.Default)
	t.row("instructions", fmt.Sprint(s.Instructions))
	if len(s.Flags) > 0 {
		t.row("flags", strings.Join(s.Flags, " "))
	}
	if s.Listener != "" {
		t.row("listener", s.Listener)
	}
	for _, a := range s.Archs {
		t.row(string(a.Arch), fmt.Sprintf("%d calls allowed, %d by arguments, %d denied", a.Allowed, a.Conditional, a.Denied))
	}
}

func (p *Process) write(t *table) {
	t.section("process")
	t.row("program", words(p.Args))
	for _, v := range p.Env {
		t.row("environment", v)
	}
	t.row("directory", p.Cwd)
	user := fmt.Sprintf("%d, group %d", p.UID, p.GID)
	if len(p.Groups) > 0 {
		user += fmt.Sprintf(", further groups %v", p.Groups)
	}
	t.row("user", user+", umask "+p.Umask)
	kept := p.Caps["bounding"]
	for _, set := range []string{"bounding", "permitted", "effective", "inheritable", "ambient"} {
		list := p.Caps[set]
		switch {
		case set != "bounding" && len(list) > 0 && slices.Equal(list, kept):
			t.row(set, "the same")
		default:
			t.capabilities(set, list)
		}
	}
	t.capabilities("dropped", p.Dropped)
	t.row("new privileges", map[bool]string{true: "none", false: "possible"}[p.NoNewPrivileges])
	t.row("terminal", map[bool]string{true: "a new one", false: "none"}[p.Terminal])
	t.settings(p.Limits)
	t.settings(p.Settings)
}

// table prints rows of cells, aligned within a section. The first error stays.
type table struct {
	w    *tabwriter.Writer
	some bool // the section has a row
	err  error
}

func (t *table) print(line string) {
	if _, err := io.WriteString(t.w, line); err != nil && t.err == nil {
		t.err = err
	}
}

func (t *table) row(cells ...string) {
	t.some = true
	for i := range cells {
		cells[i] = Printable(cells[i])
	}
	t.print("  " + strings.TrimRight(strings.Join(cells, "\t"), "\t") + "\n")
}

func (t *table) settings(list []Setting) {
	for _, s := range list {
		t.row(s.Name, s.Value)
	}
}

// capabilities are printed without their common beginning, some a line.
func (t *table) capabilities(name string, list []string) {
	if len(list) == 0 {
		t.row(name, "none")
	}
	for part := range slices.Chunk(list, 6) {
		t.row(name, strings.ReplaceAll(strings.Join(part, " "), "CAP_", ""))
		name = ""
	}
}

// flush aligns the columns of what there is.
func (t *table) flush() {
	if err := t.w.Flush(); err != nil && t.err == nil {
		t.err = err
	}
}

// end ends a section.
func (t *table) end() {
	if !t.some {
		t.row("none")
	}
	t.flush()
}

func (t *table) section(name string) {
	t.end()
	t.print("\n" + strings.ToUpper(name) + "\n")
	t.flush()
	t.some = false
}

func ids(list []plan.Mapping) string {
	var out []string
	for _, m := range list {
		out = append(out, fmt.Sprintf("%d is the host's %d, %d ids", m.Inside, m.Outside, m.Size))
	}
	return strings.Join(out, "; ")
}

// words writes arguments so that one sees where each starts.
func words(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if out[i] = a; a == "" || strings.ContainsAny(a, " \t\n\"'\\") {
			out[i] = fmt.Sprintf("%q", a)
		}
	}
	return strings.Join(out, " ")
}

// Printable quotes what would change the terminal that shows it: a configuration may come
// from anywhere.
func Printable(s string) string {
	bad := func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError }
	if strings.ContainsFunc(s, bad) {
		return fmt.Sprintf("%q", s)
	}
	return s
}
