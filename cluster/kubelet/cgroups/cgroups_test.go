package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// tree is a directory that looks like cgroup v1's.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, c := range []string{"cpu", "memory", "pids"} {
		if err := os.MkdirAll(filepath.Join(dir, c), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
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
	dir := tree(t)
	m := newAt(dir, "/c", Limits{MilliCPU: 2000, MemoryBytes: 1 << 30})
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
		for file, want := range map[string]string{filepath.Join(cpu, "cpu.cfs_quota_us"): tc.quota, filepath.Join(memory, "memory.limit_in_bytes"): tc.memory} {
			got := read(file)
			if want == "" && !strings.Contains(got, "no such file") || want != "" && got != want {
				t.Errorf("%s: %s, want %q", file, got, want)
			}
		}
		if got := read(dir, "cpu/c/kubepods/burstable/cpu.shares"); got != tc.pool {
			t.Errorf("after %s the burstable share %s, want %s", tc.parent, got, tc.pool)
		}
	}
}

func TestRemoveTakesWhatTheRuntimeLeft(t *testing.T) {
	dir := tree(t)
	m := newAt(dir, "/", Limits{})
	// Only directories: in a cgroup file system the files need no removing.
	left := filepath.Join(dir, "pids", m.path(v1.PodQOSGuaranteed, "u"), "container")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
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
	m := newAt(t.TempDir(), "/", Limits{}) // no controllers
	p := onePod("u", nil, nil)
	if m.Parent(p) != "" || m.Ensure(p) != nil || m.Remove("u") != nil {
		t.Error("something is made where nothing can be")
	}
}
