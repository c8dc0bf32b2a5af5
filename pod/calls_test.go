package pod

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/streams"
)

// Commands run as the bundle of their container says, and end with the Manager.
func TestExecInARunningContainer(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	r := must[streams.ExecSyncResult](t)(m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"env"}}, 0))
	if r.ExitCode != 3 || !strings.Contains(string(r.Stdout), "A=image") {
		t.Errorf("got code %d, output %q", r.ExitCode, r.Stdout)
	}
	r.Free()
	ok(t, m.Close())
	if _, err := m.ExecSync(ctx, streams.ExecRequest{Container: id, Command: []string{"env"}}, 0); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("exec by a closed Manager: %v", err)
	}
	m, _ = b.manager()
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

func TestUnknownAndAmbiguousIDs(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	for name, call := range map[string]func(id string) error{
		"Pod":             func(id string) error { _, err := m.Pod(id); return err },
		"Container":       func(id string) error { _, err := m.Container(id); return err },
		"Create":          func(id string) error { _, err := m.Create(ctx, id, containerConfig("run")); return err },
		"StartContainer":  func(id string) error { return m.StartContainer(ctx, id) },
		"Stats":           func(id string) error { _, err := m.Stats(ctx, id); return err },
		"UpdateResources": func(id string) error { return m.UpdateResources(ctx, id, podconfig.Resources{}, nil) },
	} {
		if err := call("feedbeef"); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s of an unknown id: %v", name, err)
		}
		if err := call(""); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s of an empty id: %v", name, err)
		}
	}
	// Of 17 ids two begin alike.
	first := map[byte]bool{}
	var twice string
	for i := range 17 {
		cfg := podConfig("p")
		cfg.Attempt = uint32(i)
		id := must[string](t)(m.Run(ctx, cfg))
		if first[id[0]] {
			twice = id[:1]
		}
		first[id[0]] = true
	}
	if _, err := m.Pod(twice); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("ambiguous prefix: %v", err)
	}
	if err := m.Stop(ctx, twice); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("stop by an ambiguous prefix: %v", err)
	}
	for p := range m.Pods(state.PodFilter{}) {
		ok(t, m.Remove(ctx, p.ID))
	}
}

func TestUpdateResources(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	c := containerConfig("run")
	c.Resources = podconfig.Resources{CPUShares: 100, MemoryLimit: 1 << 20}
	id := must[string](t)(m.Create(ctx, podID, c))
	ok(t, m.UpdateResources(ctx, id, podconfig.Resources{MemoryLimit: 2 << 20}, nil))
	ok(t, m.StartContainer(ctx, id))
	if l := b.proc(id).limits; *l.Memory.Limit != 2<<20 || *l.CPU.Shares != 100 || len(l.Devices) == 0 {
		t.Errorf("started with %+v", l)
	}
	ok(t, m.UpdateResources(ctx, id, podconfig.Resources{CPUQuota: 5000}, nil))
	if l := b.proc(id).limits; *l.CPU.Quota != 5000 || l.Memory != nil {
		t.Errorf("updated with %+v", l)
	}
	want := podconfig.Resources{CPUShares: 100, MemoryLimit: 2 << 20, CPUQuota: 5000}
	if got := must[state.Container](t)(m.Container(id)).Config.Resources; got.MemoryLimit != want.MemoryLimit ||
		got.CPUQuota != want.CPUQuota ||
		got.CPUShares != want.CPUShares {
		t.Errorf("recorded %+v", got)
	}
	if err := m.UpdateResources(ctx, id, podconfig.Resources{CPUShares: -1}, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("bad limit: %v", err)
	}
	ok(t, m.StopContainer(ctx, id, 0))
	if err := m.UpdateResources(ctx, id, podconfig.Resources{CPUShares: 1}, nil); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("exited: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
}

func TestLimitsOnHost(t *testing.T) {
	huge := map[string]uint64{"2MB": 0}
	for _, tc := range []struct {
		name      string
		r         podconfig.Resources
		host      podconfig.HostLimits
		swap      int64
		hugepages int
	}{
		{"memory alone means no swap", podconfig.Resources{MemoryLimit: 100}, podconfig.HostLimits{Swap: true}, 100, 0},
		{"swap as given", podconfig.Resources{MemoryLimit: 100, MemorySwapLimit: 150}, podconfig.HostLimits{Swap: true}, 150, 0},
		{"no limit", podconfig.Resources{MemoryLimit: -1}, podconfig.HostLimits{Swap: true}, -1, 0},
		{"nothing", podconfig.Resources{}, podconfig.HostLimits{Swap: true}, 0, 0},
		{"no swap accounting", podconfig.Resources{MemoryLimit: 100, MemorySwapLimit: 100}, podconfig.HostLimits{}, 0, 0},
		{"huge pages", podconfig.Resources{Hugepages: huge}, podconfig.HostLimits{Hugepages: true}, 0, 1},
		{"no huge page controller", podconfig.Resources{Hugepages: huge}, podconfig.HostLimits{}, 0, 0},
	} {
		if got := tc.r.On(tc.host); got.MemorySwapLimit != tc.swap || len(got.Hugepages) != tc.hugepages {
			t.Errorf("%s: got %+v", tc.name, got)
		}
	}
	r := podconfig.Resources{MemoryLimit: 200, MemorySwapLimit: 300, CPUQuota: 10, CPUPeriod: 20, CPUShares: 5}
	if got := r.Change(podconfig.Resources{MemoryLimit: 200}); got.MemorySwapLimit != 300 || got.CPUQuota != 0 {
		t.Errorf("memory changes with %+v", got)
	}
	if got := r.Change(podconfig.Resources{CPUQuota: 10}); got.CPUPeriod != 20 || got.CPUShares != 0 || got.MemoryLimit != 0 {
		t.Errorf("quota changes with %+v", got)
	}
}

// What containers can write to is not on the state directory's file system, which
// they would fill up.
func TestPodFilesAreBounded(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	for _, ipc := range []podconfig.NamespaceMode{podconfig.NamespacePod, podconfig.NamespaceNode} {
		cfg := podConfig("p")
		cfg.Namespaces.IPC = ipc
		podID := must[string](t)(m.Run(t.Context(), cfg))
		var fs unix.Statfs_t
		ok(t, unix.Statfs(m.dirs.PodFile(podID, "resolv.conf"), &fs))
		if size := fs.Blocks * uint64(fs.Bsize); fs.Type != unix.TMPFS_MAGIC || size != 64<<20 {
			t.Errorf("ipc %s: the pod's files are on a file system of type %x with %d bytes", ipc, fs.Type, size)
		}
		ok(t, m.Remove(t.Context(), podID))
	}
	idle(t, m)
	b.nothingLeft()
}

// A kubelet without a cluster domain sends names that end with a dot; other kubelets and users send
// what sethostname(2) takes.
func TestHostnames(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	for _, name := range []string{"web-0.web.default.svc.", "web_0", "-web", "web!", "кит", strings.Repeat("x", 64)} {
		cfg := podConfig("p")
		cfg.Hostname = name
		podID := must[string](t)(m.Run(t.Context(), cfg))
		for file, want := range map[string]string{"hostname": name + "\n", "hosts": "10.1.2.3\t" + name + "\n"} {
			got, err := os.ReadFile(filepath.Join(b.state, "pods", podID, "files", file))
			if err != nil || !strings.HasSuffix(string(got), want) {
				t.Errorf("%s: %s is %q, %v", name, file, got, err)
			}
		}
		ok(t, m.Remove(t.Context(), podID))
	}
	idle(t, m)
	b.nothingLeft()
}

func TestPodFiles(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	cfg := podConfig("p")
	cfg.DNS = podconfig.DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5"}}
	podID := must[string](t)(m.Run(t.Context(), cfg))
	for name, want := range map[string]string{
		"hostname":    "host-p\n",
		"resolv.conf": "search a.b c\nnameserver 10.0.0.10\noptions ndots:5\n",
		"hosts":       "10.1.2.3\thost-p\n",
	} {
		got, err := os.ReadFile(filepath.Join(b.state, "pods", podID, "files", name))
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if told := b.networks[podID].DNS; !reflect.DeepEqual(told, network.DNS(cfg.DNS)) {
		t.Errorf("the network was told %+v", told)
	}
	ok(t, m.Remove(t.Context(), podID))
}
