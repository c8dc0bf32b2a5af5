package pod

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// fakeLabels is SELinux of a host that has it on. Each label without a level gets categories of its
// own.
type fakeLabels struct {
	given    int
	reserved map[string]bool            // levels: as in go-selinux, they are not counted
	changed  map[string]mac.VolumeLabel // what was relabelled, and how
}

func newFakeLabels() *fakeLabels {
	return &fakeLabels{reserved: map[string]bool{}, changed: map[string]mac.VolumeLabel{}}
}

// in has a manager use them.
func (f *fakeLabels) in(_ *Options, d *Deps) { d.Labels = f }

func (f *fakeLabels) Labels(options []string) (mac.Labels, error) {
	if slices.Contains(options, "disable") {
		return mac.Labels{Mount: "u:object_r:container_file_t:s0:c1022,c1023"}, nil
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
	l := mac.Labels{
		Process: strings.Join([]string{of["user"], of["role"], of["type"], of["level"]}, ":"),
		Mount:   of["user"] + ":object_r:container_file_t:" + of["level"],
	}
	f.Reserve(l.Process)
	return l, nil
}

func (f *fakeLabels) Reserve(label string) { f.reserved[level(label)] = true }
func (f *fakeLabels) Release(label string) { delete(f.reserved, level(label)) }

func level(label string) string { return strings.Join(strings.Split(label, ":")[3:], ":") }

func (f *fakeLabels) Relabel(path, label string, access mac.FileAccess) error {
	f.changed[path] = mac.VolumeLabel{Mount: label, Access: access}
	return nil
}

// Regression: each container had categories of its own, and shared volumes had none.
func TestSELinuxLabelsOfPod(t *testing.T) {
	b := newBench(t)
	labels := newFakeLabels()
	m, _ := b.manager(labels.in)
	ctx := t.Context()
	cfg := podConfig("p")
	cfg.Namespaces.PID = podconfig.NamespacePod
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
	made := func(podID string, change func(*podconfig.Container)) (process, mount, root string) {
		t.Helper()
		c := containerConfig("run")
		c.Attempt = attempt
		attempt++
		c.Mounts = []podconfig.Mount{{ContainerPath: "/v", HostPath: volume, SELinuxRelabel: true}}
		change(&c)
		id := must[string](t)(m.Create(ctx, podID, c))
		s := read(filepath.Join(b.state, "containers", id, "config.json"))
		return s.Process.SelinuxLabel, s.Linux.MountLabel, b.labels[id]
	}
	const process, mount = "u:r:container_t:s0:c1,c1000", "u:object_r:container_file_t:s0:c1,c1000"
	for name, tc := range map[string]struct {
		pod                    string
		change                 func(*podconfig.Container)
		process, mount, volume string
	}{
		"one":              {podID, func(*podconfig.Container) {}, process, mount, mount},
		"two, shares pids": {podID, func(c *podconfig.Container) { c.Security.Namespaces.PID = podconfig.NamespacePod }, process, mount, mount},
		"own type": {
			podID, func(c *podconfig.Container) { c.Security.SELinux.Type = "web_t" },
			"u:r:web_t:s0:c1,c1000", mount, mount,
		},
		"own level": {
			podID, func(c *podconfig.Container) { c.Security.SELinux.Level = "s0:c7,c8" },
			"u:r:container_t:s0:c7,c8", "u:object_r:container_file_t:s0:c7,c8", "u:object_r:container_file_t:s0:c7,c8",
		},
		"privileged": {
			podID, func(c *podconfig.Container) { c.Security.Privileged = true },
			"", "u:object_r:container_file_t:s0:c1022,c1023", mount, // the others must still read the volume
		},
		"privileged, own type": {
			podID, func(c *podconfig.Container) { c.Security.Privileged, c.Security.SELinux.Type = true, "spc_t" },
			"u:r:spc_t:s0:c1,c1000", mount, mount,
		},
		"another pod's": {
			other, func(*podconfig.Container) {},
			"u:r:container_t:s0:c2,c1000", "u:object_r:container_file_t:s0:c2,c1000", "u:object_r:container_file_t:s0:c2,c1000",
		},
	} {
		p, files, root := made(tc.pod, tc.change)
		if p != tc.process || files != tc.mount || root != tc.mount {
			t.Errorf("%s: process %q, mounts %q, root %q", name, p, files, root)
		}
		if got := labels.changed[volume]; got != (mac.VolumeLabel{Mount: tc.volume, Access: mac.PodAccess}) {
			t.Errorf("%s: volume %+v", name, got)
		}
	}
	if got := read(filepath.Join(b.state, "pods", podID, "init", "config.json")).Process.SelinuxLabel; got != process {
		t.Errorf("init %q", got)
	}
	if got := labels.changed[m.dirs.PodFile(podID, "resolv.conf")]; got != (mac.VolumeLabel{Mount: mount, Access: mac.PodAccess}) {
		t.Errorf("resolv.conf %+v", got)
	}
	// The next daemon keeps the categories, and gives them back with the pod.
	m.Close()
	next := newFakeLabels()
	m, _ = b.manager(next.in)
	if !next.reserved[level(process)] {
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

// Regression of an upgrade: containers of pods that an earlier version made would be confined by
// nothing, and would lock their siblings, which have other categories, out of the volumes.
func TestSELinuxLabelsOfOlderPod(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	cfg := podConfig("p")
	cfg.Privileged = true
	podID := must[string](t)(m.Run(ctx, cfg)) // its record has no labels: this machine has no SELinux
	m.Close()
	labels := newFakeLabels()
	m, _ = b.manager(labels.in)
	volume := t.TempDir()
	for i, tc := range []struct {
		privileged bool
		volume     string
	}{
		{false, "u:object_r:container_file_t:s0:c1,c1000"},
		{true, "u:object_r:container_file_t:s0:c1022,c1023"},
	} {
		c := containerConfig("run")
		c.Attempt, c.Security.Privileged = uint32(i), tc.privileged
		c.Mounts = []podconfig.Mount{{ContainerPath: "/v", HostPath: volume, SELinuxRelabel: true}}
		must[string](t)(m.Create(ctx, podID, c))
		if got := labels.changed[volume]; got != (mac.VolumeLabel{Mount: tc.volume, Access: mac.AllAccess}) {
			t.Errorf("privileged %t: volume %+v", tc.privileged, got)
		}
	}
	if !labels.reserved["s0:c1,c1000"] {
		t.Errorf("reserved %v", labels.reserved)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	if len(labels.reserved) > 0 {
		t.Errorf("reserved after the removal: %v", labels.reserved)
	}
}

// Regression: a level that several pods name was free for others when the first of them went, and
// one that only a container names was never released, nor reserved by the next daemon.
func TestSELinuxLevelIsHeldUntilItsLastUserIsGone(t *testing.T) {
	b := newBench(t)
	labels := newFakeLabels()
	m, _ := b.manager(labels.in)
	ctx := t.Context()
	const shared, own = "s0:c3,c4", "s0:c7,c8"
	var pods []string
	for _, name := range []string{"a", "b", "c"} {
		cfg := podConfig(name)
		cfg.SELinux.Level = shared
		pods = append(pods, must[string](t)(m.Run(ctx, cfg)))
	}
	c := containerConfig("run")
	c.Security.SELinux.Level = own
	must[string](t)(m.Create(ctx, pods[2], c))
	bad := c
	bad.Attempt, bad.Mounts = 1, []podconfig.Mount{{ContainerPath: "/v", HostPath: "/proc/self/exe/none"}}
	if _, err := m.Create(ctx, pods[2], bad); err == nil {
		t.Error("container with a bad mount was made")
	}
	expect := func(when string, labels *fakeLabels, want ...string) {
		t.Helper()
		idle(t, m)
		if got := slices.Sorted(maps.Keys(labels.reserved)); !slices.Equal(got, want) {
			t.Errorf("%s: reserved %q, want %q", when, got, want)
		}
	}
	expect("made", labels, shared, own)
	ok(t, m.Remove(ctx, pods[0]))
	expect("first pod removed", labels, shared, own)
	m.Close()
	next := newFakeLabels()
	m, _ = b.manager(next.in)
	expect("after a restart", next, shared, own)
	ok(t, m.Remove(ctx, pods[1]))
	expect("second pod removed", next, shared, own)
	ok(t, m.Remove(ctx, pods[2]))
	expect("all removed", next)
}
