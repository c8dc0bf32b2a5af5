package cgroups

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// tree is a directory that looks like cgroup v1's: a new cgroup has its controller's files.
var discard = slog.New(slog.DiscardHandler)

func tree(t *testing.T) (string, layout) {
	t.Helper()
	dir := t.TempDir()
	files := map[string][]string{
		"cpu": {"cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"}, "memory": {"memory.limit_in_bytes"},
		"pids": {"pids.max"},
	}
	for c := range files {
		if err := os.MkdirAll(filepath.Join(dir, c), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := detect(dir, discard)
	if err != nil {
		t.Fatal(err)
	}
	v1 := l.(perController)
	v1.mkdir = func(path string) error {
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		controller, _, _ := strings.Cut(rel, "/")
		return mkdirWith(path, files[controller])
	}
	return dir, v1
}

// mkdirWith makes a directory with files, as a cgroup file system does.
func mkdirWith(dir string, files []string) error {
	if err := mkdir(dir); err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

func manager(t *testing.T, l layout, root string, all Limits) *Manager {
	t.Helper()
	m, err := newAt(l, root, all, discard)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func read(elem ...string) string {
	content, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(content))
}

func onePod(uid types.UID, requests, limits v1.ResourceList) *v1.Pod {
	p := &v1.Pod{}
	p.UID = uid
	p.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}}
	return p
}

func list(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func TestPodsHaveCgroupsByClass(t *testing.T) {
	dir, l := tree(t)
	m := manager(t, l, "/c", Limits{MilliCPU: 2000, MemoryBytes: 1 << 30})
	if got := read(dir, "memory/c/kubepods/memory.limit_in_bytes"); got != "1073741824" {
		t.Errorf("limit of all pods: %s", got)
	}
	both := list("500m", "64Mi")
	for _, tc := range []struct {
		pod                         *v1.Pod
		parent                      string
		shares, quota, memory, pool string
	}{
		{onePod("g", both, both), "/c/kubepods/podg", "512", "50000", "67108864", "2"},
		{onePod("b", list("250m", ""), list("", "")), "/c/kubepods/burstable/podb", "256", "", "", "256"},
		{onePod("b2", list("100m", ""), list("200m", "")), "/c/kubepods/burstable/podb2", "102", "20000", "", "358"},
		{onePod("e", nil, nil), "/c/kubepods/besteffort/pode", "2", "", "", "358"},
	} {
		if got := m.Parent(tc.pod); got != tc.parent {
			t.Errorf("parent %s, want %s", got, tc.parent)
		}
		if _, err := m.Ensure(tc.pod); err != nil {
			t.Fatal(err)
		}
		cpu, memory := filepath.Join(dir, "cpu", tc.parent), filepath.Join(dir, "memory", tc.parent)
		if got := read(cpu, "cpu.shares"); got != tc.shares {
			t.Errorf("%s: shares %s", tc.parent, got)
		}
		for file, want := range map[string]string{
			filepath.Join(cpu, "cpu.cfs_quota_us"):         tc.quota,
			filepath.Join(memory, "memory.limit_in_bytes"): tc.memory,
		} {
			if got := read(file); got != want {
				t.Errorf("%s: %s, want %q", file, got, want)
			}
		}
		if got := read(dir, "cpu/c/kubepods/burstable/cpu.shares"); got != tc.pool {
			t.Errorf("after %s the burstable share %s, want %s", tc.parent, got, tc.pool)
		}
	}
}

func TestPodsHaveALimitOfProcesses(t *testing.T) {
	for limit, want := range map[int64]string{4096: "4096", -1: ""} {
		dir, l := tree(t)
		m := manager(t, l, "/c", Limits{MilliCPU: 2000, PodPIDs: limit})
		for _, p := range []*v1.Pod{onePod("g", list("1", "1Gi"), list("1", "1Gi")), onePod("b", list("250m", ""), nil), onePod("e", nil, nil)} {
			if _, err := m.Ensure(p); err != nil {
				t.Fatal(err)
			}
			if got := read(dir, "pids", m.Parent(p), "pids.max"); got != want {
				t.Errorf("limit %d, pod %s: %s", limit, p.UID, got)
			}
		}
		if got := m.Container(); got != nil {
			t.Errorf("containers have limits in addition to their pods': %v", got)
		}
	}
}

// Where pods have no cgroups from here, each container has the limit, with cgroup v2.
func TestWithoutPodsCgroupsContainersHaveTheLimit(t *testing.T) {
	if got := off(unified{}, "test", 4096, discard).Container()["pids.max"]; got != "4096" {
		t.Errorf("cgroup v2: pids.max %q", got)
	}
	if got := off(unified{}, "test", -1, discard).Container(); got != nil {
		t.Errorf("without a limit: %v", got)
	}
	if got := off(perController{}, "test", 4096, discard).Container(); got != nil {
		t.Errorf("cgroup v1, for which CRI has no field: %v", got)
	}
}

// podsOf returns the UIDs of the pods that have a cgroup, in whichever hierarchy.
func podsOf(m *Manager) []types.UID {
	found := map[types.UID]bool{}
	for _, hierarchy := range m.layout.all() {
		for _, class := range classes {
			entries, _ := os.ReadDir(filepath.Join(hierarchy, m.dir(class))) // not every hierarchy has it
			for _, e := range entries {
				if uid, ok := strings.CutPrefix(e.Name(), podPrefix); ok && e.IsDir() {
					found[types.UID(uid)] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(found))
}

func TestRemoveTakesWhatTheRuntimeLeft(t *testing.T) {
	dir, l := tree(t)
	m := manager(t, l, "/", Limits{})
	// Only directories: in a cgroup file system the files need no removing.
	left := filepath.Join(dir, "pids", m.path(v1.PodQOSGuaranteed, "u"), "container")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := podsOf(m); !slices.Equal(got, []types.UID{"u"}) {
		t.Errorf("pods with cgroups: %v", got)
	}
	if err := m.Remove("u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(left)); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
	if err := m.Remove("u"); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestWithoutCgroupsTheRuntimeDecides(t *testing.T) {
	if _, err := detect(t.TempDir(), discard); err == nil {
		t.Error("found in an empty directory")
	}
	m := off(nil, "there are none", 4096, discard)
	p := onePod("u", nil, nil)
	if exact, err := m.Ensure(p); m.Parent(p) != "" || !exact || err != nil || m.Lower(p) != nil || m.Remove("u") != nil {
		t.Error("something is made where nothing can be")
	}
}

func TestAMissingHierarchyIsAnError(t *testing.T) {
	dir, l := tree(t)
	if err := os.Remove(filepath.Join(dir, "memory")); err != nil {
		t.Fatal(err)
	}
	v1 := l.(perController)
	v1.controllers = []string{"cpu", "pids"}
	if _, err := newAt(v1, "/", Limits{}, discard); err == nil || !strings.Contains(err.Error(), "no cgroup controllers memory:") {
		t.Errorf("error %v", err)
	}
}

// Regression: a pod's limits became less while its containers still had more.
func TestLimitsOfAPodWithContainersAreLoweredAtTheEnd(t *testing.T) {
	dir, l1 := tree(t)
	l2 := tree2(t, "cpu memory pids")
	for name, tc := range map[string]struct {
		l                              layout
		memory, quota, used, container string
		quotas                         [3]string // of 1, 0.5 and 2 CPUs
	}{
		"v1": {
			l1, filepath.Join(dir, "memory/c/kubepods/podg/memory.limit_in_bytes"), filepath.Join(dir, "cpu/c/kubepods/podg/cpu.cfs_quota_us"),
			filepath.Join(dir, "memory/c/kubepods/podg/memory.usage_in_bytes"), filepath.Join(dir, "memory/c/kubepods/podg/container"),
			[3]string{"100000", "50000", "200000"},
		},
		"v2": {
			l2, filepath.Join(l2.mount, "c/kubepods/podg/memory.max"), filepath.Join(l2.mount, "c/kubepods/podg/cpu.max"),
			filepath.Join(l2.mount, "c/kubepods/podg/memory.current"), filepath.Join(l2.mount, "c/kubepods/podg/container"),
			[3]string{"100000 100000", "50000 100000", "200000 100000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, tc.l, "/c", Limits{MilliCPU: 4000, MemoryBytes: 1 << 30})
			pod := func(cpu, memory string) *v1.Pod { return onePod("g", list(cpu, memory), list(cpu, memory)) }
			ensure := func(p *v1.Pod, wantExact bool) {
				t.Helper()
				if exact, err := m.Ensure(p); exact != wantExact || err != nil {
					t.Errorf("exact %t, %v", exact, err)
				}
			}
			want := func(memory, quota string) {
				t.Helper()
				if m, q := read(tc.memory), read(tc.quota); m != memory || q != quota {
					t.Errorf("memory %s and quota %s, want %s and %s", m, q, memory, quota)
				}
			}
			const small, large = "67108864", "134217728"
			ensure(pod("1", "128Mi"), true)
			want(large, tc.quotas[0])
			if err := os.Mkdir(tc.container, 0o755); err != nil {
				t.Fatal(err)
			}
			ensure(pod("1", "128Mi"), true)
			ensure(pod("2", "64Mi"), false) // one becomes more, the other less
			want(large, tc.quotas[2])
			ensure(pod("500m", "64Mi"), false)
			want(large, tc.quotas[2])

			if err := os.WriteFile(tc.used, []byte(small+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			const refused = "cannot decrease memory limits: attempting to set pod memory limit (67108864) below current usage (67108864)"
			if err := m.Lower(pod("500m", "64Mi")); err == nil || err.Error() != refused {
				t.Errorf("error %v", err)
			}
			want(large, tc.quotas[2])
			if err := os.WriteFile(tc.used, []byte("4096\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := m.Lower(pod("500m", "64Mi")); err != nil {
				t.Error(err)
			}
			want(small, tc.quotas[1])
		})
	}
}

// What a kubelet that was killed has made without setting limits gets them.
func TestAnEmptyCgroupGetsItsLimitsAtOnce(t *testing.T) {
	l := tree2(t, "cpu memory pids")
	m := manager(t, l, "/c", Limits{MilliCPU: 4000, MemoryBytes: 1 << 30})
	p := onePod("g", list("1", "64Mi"), list("1", "64Mi"))
	if err := l.make(m.Parent(p)); err != nil {
		t.Fatal(err)
	}
	for file, unlimited := range map[string]string{"memory.max": "max\n", "cpu.max": "max 100000\n"} {
		if err := os.WriteFile(filepath.Join(l.mount, m.Parent(p), file), []byte(unlimited), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if exact, err := m.Ensure(p); !exact || err != nil {
		t.Errorf("exact %t, %v", exact, err)
	}
	if got := read(l.mount, m.Parent(p), "memory.max"); got != "67108864" {
		t.Errorf("limit %s", got)
	}
}
