package pod

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
)

// withLabels has a manager use a host's SELinux.
func withLabels(l *podtest.Labels) func(*Options, *Deps) {
	return func(_ *Options, d *Deps) { d.Labels = l }
}

// The labels of a pod and of its containers reach everything that is made of them.
func TestSELinuxLabelsReachAllParts(t *testing.T) {
	b := newBench(t)
	labels := podtest.NewLabels()
	m, _ := b.manager(withLabels(labels))
	ctx := t.Context()
	cfg := podConfig("p")
	cfg.Namespaces.PID = podconfig.NamespacePod
	podID := must[string](t)(m.Run(ctx, cfg))
	const process, mount = "u:r:container_t:s0:c1,c1000", "u:object_r:container_file_t:s0:c1,c1000"
	volume := t.TempDir()
	for i, tc := range []struct {
		level, process, mount string
	}{
		{"", process, mount},
		{"s0:c7,c8", "u:r:container_t:s0:c7,c8", "u:object_r:container_file_t:s0:c7,c8"},
	} {
		c := containerConfig("run")
		c.Attempt = uint32(i)
		c.Security.Namespaces.PID = podconfig.NamespacePod
		c.Security.SELinux.Level = tc.level
		c.Mounts = []podconfig.Mount{{ContainerPath: "/v", HostPath: volume, SELinuxRelabel: true}}
		id := must[string](t)(m.Create(ctx, podID, c))
		if s := b.bundle(id); s.Process.SelinuxLabel != tc.process || s.Linux.MountLabel != tc.mount || b.labels[id] != tc.mount {
			t.Errorf("level %q: process %q, mounts %q, root %q", tc.level, s.Process.SelinuxLabel, s.Linux.MountLabel, b.labels[id])
		}
		if got := labels.Changed[volume]; got != (mac.VolumeLabel{Mount: tc.mount, Access: mac.PodAccess}) {
			t.Errorf("level %q: volume %+v", tc.level, got)
		}
	}
	var podInit specs.Spec
	ok(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(filepath.Join(b.state, "pods", podID, "init", "config.json"))), &podInit))
	if got := podInit.Process.SelinuxLabel; got != process {
		t.Errorf("init %q", got)
	}
	for _, name := range []string{"resolv.conf", "hosts", "hostname", "shm"} {
		if got := labels.Changed[m.dirs.PodFile(podID, name)]; got != (mac.VolumeLabel{Mount: mount, Access: mac.PodAccess}) {
			t.Errorf("%s %+v", name, got)
		}
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

// Pods and containers whose records have no labels, because the machine had no SELinux, get on with
// a daemon that has it.
func TestContainersOfAPodWithoutSELinuxLabels(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	m.Close()
	labels := podtest.NewLabels()
	m, _ = b.manager(withLabels(labels))
	must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	if got := labels.Reserved(); !slices.Equal(got, []string{"s0:c1,c1000"}) {
		t.Errorf("reserved %q", got)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	if got := labels.Reserved(); len(got) > 0 {
		t.Errorf("reserved after the removal: %q", got)
	}
}

// Regression: a level that only a container names was never released, nor reserved by the next
// daemon.
func TestSELinuxLevelsOutliveTheDaemon(t *testing.T) {
	b := newBench(t)
	labels := podtest.NewLabels()
	m, _ := b.manager(withLabels(labels))
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
	expect := func(when string, labels *podtest.Labels, want ...string) {
		t.Helper()
		idle(t, m)
		if got := labels.Reserved(); !slices.Equal(got, want) {
			t.Errorf("%s: reserved %q, want %q", when, got, want)
		}
	}
	expect("made", labels, shared, own)
	ok(t, m.Remove(ctx, pods[0]))
	expect("first pod removed", labels, shared, own)
	m.Close()
	next := podtest.NewLabels()
	m, _ = b.manager(withLabels(next))
	expect("after a restart", next, shared, own)
	ok(t, m.Remove(ctx, pods[1]))
	expect("second pod removed", next, shared, own)
	ok(t, m.Remove(ctx, pods[2]))
	expect("all removed", next)
}
