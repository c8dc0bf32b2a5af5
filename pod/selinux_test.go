package pod

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// fakeLabels is SELinux of a host that has it on. Each label without a level gets categories of its own.
type fakeLabels struct {
	given    int
	reserved map[string]bool
	changed  map[string]string // what was relabelled, and how
}

func newFakeLabels() *fakeLabels {
	return &fakeLabels{reserved: map[string]bool{}, changed: map[string]string{}}
}

func (f *fakeLabels) Labels(options []string) (SELinuxLabels, error) {
	if slices.Contains(options, "disable") {
		return SELinuxLabels{Mount: "u:object_r:container_file_t:s0:c1022,c1023"}, nil
	}
	of := map[string]string{"user": "u", "role": "r", "type": "container_t"}
	for _, o := range options {
		name, value, _ := strings.Cut(o, ":")
		of[name] = value
	}
	if of["level"] == "" {
		f.given++
		of["level"] = fmt.Sprintf("s0:c%d,c1000", f.given)
	}
	l := SELinuxLabels{
		Process: strings.Join([]string{of["user"], of["role"], of["type"], of["level"]}, ":"),
		Mount:   of["user"] + ":object_r:container_file_t:" + of["level"],
	}
	f.Reserve(l.Process)
	return l, nil
}

func (f *fakeLabels) Reserve(label string) { f.reserved[label] = true }
func (f *fakeLabels) Release(label string) { delete(f.reserved, label) }

func (f *fakeLabels) Relabel(path, label string) error {
	f.changed[path] = label
	return nil
}

// Regression: each container had categories of its own, and shared volumes had none.
func TestSELinuxLabelsOfPod(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	labels := newFakeLabels()
	m.Labels = labels
	ctx := t.Context()
	cfg := podConfig("p")
	cfg.Namespaces.PID = NamespacePod
	cfg.Privileged = true
	podID := must[string](t)(m.Run(ctx, cfg))
	other := must[string](t)(m.Run(ctx, podConfig("q")))
	read := func(path string) *specs.Spec {
		t.Helper()
		var s specs.Spec
		raw, err := os.ReadFile(path)
		ok(t, err)
		ok(t, json.Unmarshal(raw, &s))
		return &s
	}
	volume := t.TempDir()
	attempt := uint32(0)
	made := func(podID string, change func(*ContainerConfig)) (process, mount, root string) {
		t.Helper()
		c := containerConfig("run")
		c.Attempt = attempt
		attempt++
		c.Mounts = []Mount{{ContainerPath: "/v", HostPath: volume, SELinuxRelabel: true}}
		change(&c)
		id := must[string](t)(m.Create(ctx, podID, c))
		s := read(filepath.Join(b.state, "containers", id, "config.json"))
		return s.Process.SelinuxLabel, s.Linux.MountLabel, b.labels[id]
	}
	const process, mount = "u:r:container_t:s0:c1,c1000", "u:object_r:container_file_t:s0:c1,c1000"
	for name, tc := range map[string]struct {
		pod            string
		change         func(*ContainerConfig)
		process, mount string
	}{
		"one":              {podID, func(*ContainerConfig) {}, process, mount},
		"two, shares pids": {podID, func(c *ContainerConfig) { c.Security.Namespaces.PID = NamespacePod }, process, mount},
		"own type": {
			podID, func(c *ContainerConfig) { c.Security.SELinux.Type = "web_t" },
			"u:r:web_t:s0:c1,c1000", mount,
		},
		"own level": {
			podID, func(c *ContainerConfig) { c.Security.SELinux.Level = "s0:c7,c8" },
			"u:r:container_t:s0:c7,c8", "u:object_r:container_file_t:s0:c7,c8",
		},
		"privileged": {
			podID, func(c *ContainerConfig) { c.Security.Privileged = true },
			"", "u:object_r:container_file_t:s0:c1022,c1023",
		},
		"privileged, own type": {
			podID, func(c *ContainerConfig) { c.Security.Privileged, c.Security.SELinux.Type = true, "spc_t" },
			"u:r:spc_t:s0:c1,c1000", mount,
		},
		"another pod's": {other, func(*ContainerConfig) {}, "u:r:container_t:s0:c2,c1000", "u:object_r:container_file_t:s0:c2,c1000"},
	} {
		p, files, root := made(tc.pod, tc.change)
		if p != tc.process || files != tc.mount || root != tc.mount {
			t.Errorf("%s: process %q, mounts %q, root %q", name, p, files, root)
		}
		if got := labels.changed[volume]; got != tc.mount {
			t.Errorf("%s: volume %q", name, got)
		}
	}
	if got := read(filepath.Join(b.state, "pods", podID, "init", "config.json")).Process.SelinuxLabel; got != process {
		t.Errorf("init %q", got)
	}
	if got := labels.changed[m.podFile(podID, "resolv.conf")]; got != mount {
		t.Errorf("resolv.conf %q", got)
	}
	// The next daemon keeps the categories, and gives them back with the pod.
	m.Close()
	m, _ = b.unstarted()
	next := newFakeLabels()
	m.Labels = next
	ok(t, m.Start(ctx))
	if !next.reserved[process] {
		t.Errorf("reserved after a restart: %v", next.reserved)
	}
	for _, id := range []string{podID, other} {
		ok(t, m.Remove(ctx, id))
	}
	idle(t, m)
	if len(next.reserved) > 0 {
		t.Errorf("reserved after the removal: %v", next.reserved)
	}
}

// Regression of an upgrade: containers of pods that an earlier version made would be confined by nothing.
func TestSELinuxLabelsOfOlderPod(t *testing.T) {
	m := &Manager{Deps: Deps{Labels: newFakeLabels()}}
	got, err := m.containerLabels(SELinuxLabels{}, &Security{})
	if want := "u:r:container_t:s0:c1,c1000"; err != nil || got.Process != want {
		t.Errorf("%+v, %v, want %s", got, err, want)
	}
}

func TestSELinuxOptions(t *testing.T) {
	for name, c := range map[string]struct {
		label    SELinux
		disabled bool
		want     []string
	}{
		"nothing":  {SELinux{}, false, nil},
		"disabled": {SELinux{}, true, []string{"disable"}},
		"level":    {SELinux{Level: "s0:c1,c2"}, false, []string{"level:s0:c1,c2"}},
		"all": {
			SELinux{User: "system_u", Role: "system_r", Type: "container_t", Level: "s0:c3"},
			false,
			[]string{"user:system_u", "role:system_r", "type:container_t", "level:s0:c3"},
		},
	} {
		if got := c.label.options(c.disabled); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
