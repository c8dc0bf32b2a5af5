package plan_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/validate"
)

var update = flag.Bool("update", false, "rewrite the golden files of plans")

// mutation changes the base container.
type mutation struct {
	name   string
	change func(*specs.Spec, *plan.Options)
}

// onSpec is a mutation of the configuration alone.
func onSpec(name string, change func(*specs.Spec)) mutation {
	return mutation{name, func(s *specs.Spec, _ *plan.Options) { change(s) }}
}

// TestGolden compares plans with testdata/TOPIC.golden, so that a change of any plan is seen in
// review. base.golden has the base container's whole plan, and the other files how the plan of
// each variation differs from it. Run with -update to write them.
func TestGolden(t *testing.T) {
	spec, opts := base()
	whole := describe(spec, opts)
	compare(t, "base", whole)
	for topic, list := range topics {
		t.Run(topic, func(t *testing.T) {
			var b strings.Builder
			seen := map[string]bool{}
			for _, m := range list {
				if seen[m.name] {
					t.Errorf("two cases are called %q", m.name)
				}
				seen[m.name] = true
				spec, opts := base()
				m.change(spec, &opts)
				fmt.Fprintf(&b, "== %s\n%s\n", m.name, difference(whole, describe(spec, opts)))
			}
			compare(t, topic, b.String())
		})
	}
}

// TestGoldenExec does so with further processes of the base container: exec.golden has the whole
// plan of one, and how others differ from it.
func TestGoldenExec(t *testing.T) {
	exec := func(m mutation) string {
		spec, opts := base()
		m.change(spec, &opts)
		const join = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET
		p, err := plan.Exec(&specs.Spec{Linux: &specs.Linux{}}, spec.Process, join, opts)
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		if err := check(p, opts.Features); err != nil {
			return "bad image: " + err.Error() + "\n"
		}
		return p.Describe()
	}
	whole := exec(onSpec("base", func(*specs.Spec) {}))
	var b strings.Builder
	fmt.Fprintf(&b, "== base\n%s\n", whole)
	for _, m := range slices.Concat(processCases, capabilityCases, seccompCases) {
		if text := difference(whole, exec(m)); text != "" {
			fmt.Fprintf(&b, "== %s\n%s\n", m.name, text)
		}
	}
	compare(t, "exec", b.String())
}

// describe is a plan's description, or why there is none.
func describe(spec *specs.Spec, opts plan.Options) string {
	p, err := plan.Create(spec, opts)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	if err := check(p, opts.Features); err != nil {
		return "bad image: " + err.Error() + "\n"
	}
	return p.Describe()
}

// difference is what of a plan differs from another's, each time after the line before it.
func difference(from, to string) string {
	if strings.HasPrefix(to, "error: ") {
		return to
	}
	var b strings.Builder
	before := ""
	for line := range bytes.Lines(diff.Diff("a", []byte(from), "b", []byte(to))) {
		switch line[0] {
		case ' ':
			before = string(line)
		case '-', '+':
			if bytes.HasPrefix(line, []byte("--- ")) || bytes.HasPrefix(line, []byte("+++ ")) {
				continue
			}
			b.WriteString(before)
			b.Write(line)
			before = ""
		}
	}
	return b.String()
}

func compare(t *testing.T, topic, got string) {
	t.Helper()
	path := filepath.Join("testdata", topic+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("plans changed; if that is right, run go test ./runtime/plan -update and look at the difference:\n%s",
			diff.Diff(path, want, "now", []byte(got)))
	}
}

// base is a usual container on a host with cgroup version 1, and a kernel that has it all.
func base() (*specs.Spec, plan.Options) {
	caps := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID"}
	spec := &specs.Spec{
		Version: "1.3.0", Hostname: "boat", Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: []string{"/bin/true"}, Cwd: "/", Env: []string{"PATH=/bin", "HOME=/"}, NoNewPrivileges: true,
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{
				Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
			},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/boats/one",
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			MaskedPaths:   []string{"/proc/kcore", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/sys"},
		},
	}
	return spec, plan.Options{
		Rootfs: "/bundle/rootfs", Bundle: "/bundle", Features: plan.Features{MountSetattr: true}, ID: "one",
		Home: "/root", NoFile: [2]uint64{1024, 4096}, Permitted: ^plan.CapSet(0),
		Cgroup: plan.Cgroup{Tasks: []string{"/sys/fs/cgroup/cpu/boats/one/tasks", "/sys/fs/cgroup/memory/boats/one/tasks"}},
		IsDir: func(path string) (bool, error) {
			if strings.Contains(path, "missing") {
				return false, &os.PathError{Op: "stat", Path: path, Err: unix.ENOENT}
			}
			return !strings.Contains(path, "file"), nil
		},
	}
}

// TestOptions compares the options of the plans with those that validation knows.
func TestOptions(t *testing.T) {
	for _, o := range strings.Fields(mountOptions) {
		if of := strings.Contains(o, "="); validate.IsGeneralOption(o) == of {
			t.Errorf("option %s: validation takes it for one of file systems: %v", o, !of)
		}
	}
}
