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
		if err := m.Ensure(tc.pod); err != nil {
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
			if err := m.Ensure(p); err != nil {
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
	if m.Parent(p) != "" || m.Ensure(p) != nil || m.Remove("u") != nil {
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
