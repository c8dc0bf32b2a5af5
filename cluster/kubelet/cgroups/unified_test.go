package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree2 is a directory that looks like cgroup v2's: a cgroup has the files of the controllers that
// the one above it enables, and the top has those of the kernel. Files are brought up to date
// whenever a directory is made.
func tree2(t *testing.T, kernel string) unified {
	t.Helper()
	top := t.TempDir()
	files := map[string][]string{
		"cpu": {"cpu.weight", "cpu.max"}, "memory": {"memory.max"}, "pids": {"pids.max"},
		"hugetlb": {"hugetlb.2MB.max"},
	}
	var fill func(dir string, controllers []string) error
	fill = func(dir string, controllers []string) error {
		all := []string{"cgroup.subtree_control"}
		if dir != top {
			for _, c := range controllers {
				all = append(all, files[c]...)
			}
		}
		err := errors.Join(mkdirWith(dir, all), os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte(strings.Join(controllers, " ")),
			0o644))
		if err != nil {
			return err
		}
		enabled := strings.Fields(strings.ReplaceAll(read(dir, "cgroup.subtree_control"), "+", ""))
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() {
				err = errors.Join(err, fill(filepath.Join(dir, e.Name()), enabled))
			}
		}
		return err
	}
	l := unified{log: discard, mount: top, mkdir: func(dir string) error {
		return errors.Join(mkdir(dir), fill(top, strings.Fields(kernel)))
	}}
	if err := l.mkdir(top); err != nil {
		t.Fatal(err)
	}
	return l
}

func TestControllersAreEnabledFromTheTopOn(t *testing.T) {
	for name, before := range map[string][]string{
		"a new root":         nil,
		"a root from before": {"a", "a/b"},
		"pods from before":   {"a", "a/b", "a/b/kubepods", "a/b/kubepods/burstable"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tree2(t, "cpuset cpu memory hugetlb pids")
			for _, dir := range before {
				if err := l.mkdir(filepath.Join(l.mount, dir)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(filepath.Join(l.mount, "a/b/kubepods/memory.max")); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("the tree is not like the kernel's: %v", err)
			}
			m := manager(t, l, "/a/b", Limits{MilliCPU: 2000, MemoryBytes: 1 << 30})
			pod := onePod("u", list("500m", ""), list("1", "64Mi"))
			if _, err := m.Ensure(pod); err != nil {
				t.Fatal(err)
			}
			container := filepath.Join(m.Parent(pod), "container")
			if err := l.mkdir(filepath.Join(l.mount, container)); err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{
				"a/b/kubepods/memory.max":            "1073741824",
				"a/b/kubepods/besteffort/cpu.weight": "1",
				m.Parent(pod) + "/memory.max":        "67108864",
				m.Parent(pod) + "/cpu.max":           "100000 100000",
				container + "/cgroup.controllers":    "cpuset cpu memory hugetlb pids",
			} {
				if got := read(l.mount, file); got != want {
					t.Errorf("%s: %q, want %q", file, got, want)
				}
			}
		})
	}
}

func TestAMissingControllerIsAnError(t *testing.T) {
	l := tree2(t, "cpu pids hugetlb")
	_, err := newAt(l, "/a", Limits{MilliCPU: 2000, MemoryBytes: 1 << 30}, discard)
	if err == nil || !strings.Contains(err.Error(), "no cgroup controllers memory: pods' limits would not hold; enable them") {
		t.Errorf("error %v", err)
	}
}

func TestAFigureWithoutAFileIsAnError(t *testing.T) {
	_, l1 := tree(t)
	for name, l := range map[string]layout{"v1": l1, "v2": tree2(t, "cpu memory pids")} {
		for what, f := range map[string]figures{"shares": {shares: 2}, "quota": {quota: 1000}, "memory": {memory: 1}} {
			if err := l.set("/missing", f); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, %s: error %v", name, what, err)
			}
		}
	}
}

func TestWhatHasBeenRemovedIsMadeAgain(t *testing.T) {
	l := tree2(t, "cpu memory pids")
	m := manager(t, l, "/a", Limits{MilliCPU: 2000, MemoryBytes: 1 << 30})
	if err := os.RemoveAll(filepath.Join(l.mount, "a")); err != nil {
		t.Fatal(err)
	}
	pod := onePod("u", nil, list("1", "64Mi"))
	if _, err := m.Ensure(pod); err != nil {
		t.Fatal(err)
	}
	if got := read(l.mount, m.Parent(pod), "memory.max"); got != "67108864" {
		t.Errorf("limit %q", got)
	}
}

func TestWhatKeepsControllersFromBeingEnabledIsSaid(t *testing.T) {
	for err, want := range map[error]string{
		unix.EBUSY:      "processes run in /x itself; move them to a cgroup below it, or give --cgroup-root another one",
		unix.EOPNOTSUPP: "/x is a threaded cgroup; give --cgroup-root another one",
	} {
		if got := notEnabled("/x", err); !errors.Is(got, err) || !strings.HasSuffix(got.Error(), want) {
			t.Errorf("error %v", got)
		}
	}
	if got := without([]string{"a", "b", "c"}, []string{"b"}); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%v", got)
	}
}
