package cgstat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/cgroups"

	"github.com/coracle-project/coracle/internal/cgroupmode"
)

// group writes files of a cgroup into a directory, which the library takes for one.
func group(t *testing.T, files map[string]string) string {
	t.Helper()
	cgroups.TestMode = true
	t.Cleanup(func() { cgroups.TestMode = false })
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const psi = "some avg10=1.50 avg60=0.50 avg300=0.10 total=2000\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=1000\n"

var wantPressure = &Pressure{
	Some: Stall{Avg10: 1.5, Avg60: 0.5, Avg300: 0.1, Total: 2 * time.Millisecond},
	Full: Stall{Avg10: 0.25, Total: time.Millisecond},
}

func TestReadV2(t *testing.T) {
	dir := group(t, map[string]string{
		"cpu.stat":        "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 700\n",
		"cpu.pressure":    psi,
		"memory.pressure": psi,
		"io.pressure":     psi,
		"memory.current":  "10000\n",
		"memory.peak":     "12000\n",
		"memory.max":      "20000\n",
		"memory.stat": "anon 4000\nfile 5000\nfile_mapped 600\nkernel 900\nactive_file 1500\ninactive_file 3500\npgfault " +
			"70\npgmajfault 8\n",
		"memory.swap.current":   "300\n",
		"memory.swap.max":       "max\n",
		"memory.events":         "low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n",
		"pids.current":          "3\n",
		"pids.max":              "max\n",
		"io.stat":               "999:0 rbytes=100 wbytes=200 rios=3 wios=4 dbytes=0 dios=0\n",
		"hugetlb.2MB.current":   "0\n",
		"hugetlb.2MB.events":    "max 0\n",
		"hugetlb.1GB.current":   "0\n",
		"cgroup.controllers":    "cpu memory pids io\n",
		"memory.swap.peak":      "400\n",
		"memory.zswap.current":  "0\n",
		"cgroup.procs":          "",
		"hugetlb.2MB.something": "",
	})
	u, err := readV2(dir)
	if err != nil {
		t.Fatal(err)
	}
	u.Hugepages = nil // which sizes there are is the machine's affair
	want := Usage{
		CPU: CPU{
			Total: 5 * time.Millisecond, User: 3 * time.Millisecond, System: 2 * time.Millisecond,
			Periods: 10, ThrottledPeriods: 4, Throttled: 700 * time.Microsecond,
		},
		Memory: Memory{
			Used: 10000, Peak: 12000, Limit: 20000, WorkingSet: 6500,
			RSS: 4000, Cache: 5000, Mapped: 600, Kernel: 900, ActiveFile: 1500, InactiveFile: 3500,
			Swap: 300, Failures: 9, PageFaults: 70, MajorPageFaults: 8, OOMKills: 1,
		},
		Tasks:       3,
		Devices:     []Device{{Name: "999:0", Major: 999, ReadBytes: 100, WriteBytes: 200, Reads: 3, Writes: 4}},
		CPUPressure: wantPressure, MemoryPressure: wantPressure, IOPressure: wantPressure,
	}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Error(diff)
	}
}

func TestReadV1WithTheUnifiedHierarchyBeside(t *testing.T) {
	cpu := group(t, map[string]string{
		"cpu.stat":             "nr_periods 10\nnr_throttled 4\nthrottled_time 700\n",
		"cpuacct.usage":        "5000\n",
		"cpuacct.stat":         "user 1\nsystem 0\n",
		"cpuacct.usage_percpu": "5000 0\n",
		"cpuacct.usage_all":    "cpu user system\n0 3000 2000\n",
	})
	memory := group(t, map[string]string{
		"memory.stat": "cache 1\ntotal_cache 5000\ntotal_rss 4000\ntotal_mapped_file 600\ntotal_swap 300\ntotal_pgfault " +
			"70\ntotal_pgmajfault 8\ntotal_inactive_file 12000\ntotal_active_file 1500\n",
		"memory.usage_in_bytes":     "10000\n",
		"memory.max_usage_in_bytes": "12000\n",
		"memory.limit_in_bytes":     "9223372036854771712\n",
		"memory.failcnt":            "9\n",
		"memory.use_hierarchy":      "1\n",
		"memory.oom_control":        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
	})
	unified := group(t, map[string]string{
		"cpu.stat": "usage_usec 1\n", "cpu.pressure": psi, "memory.pressure": psi, "io.pressure": psi,
	})
	u, err := readV1(map[string]string{"cpu": cpu, "cpuacct": cpu, "memory": memory}, unified)
	if err != nil {
		t.Fatal(err)
	}
	if u.CPU.Total != 5000 || u.CPU.ThrottledPeriods != 4 || u.CPU.Throttled != 700 {
		t.Errorf("cpu %+v", u.CPU)
	}
	// More inactive file pages than memory is a race between two files, not a negative number.
	want := Memory{
		Used: 10000, Peak: 12000, RSS: 4000, Cache: 5000, Mapped: 600, ActiveFile: 1500, InactiveFile: 12000,
		Swap: 300, Failures: 9, PageFaults: 70, MajorPageFaults: 8, OOMKills: 1,
	}
	if diff := cmp.Diff(want, u.Memory); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(wantPressure, u.IOPressure); diff != "" {
		t.Error(diff)
	}
}

func TestNoSuchCgroup(t *testing.T) {
	if _, err := Read("/coracle-no-such-cgroup"); !errors.Is(err, ErrNone) {
		t.Errorf("Read: %v", err)
	}
	if _, err := ReadProcesses(t.Context(), "/coracle-no-such-cgroup", 1); !errors.Is(err, ErrNone) {
		t.Errorf("ReadProcesses: %v", err)
	}
}

// TestReadOurOwn reads a cgroup of the kernel's, with a process in it.
func TestReadOurOwn(t *testing.T) {
	path := fmt.Sprintf("/coracle-cgstat-test-%d", os.Getpid()) // others may test here too
	var dirs []string
	if cgroupmode.Unified() {
		dirs = []string{filepath.Join(mountPoint, path)}
	} else {
		for _, name := range append([]string{"freezer", "unified"}, controllers...) {
			if isDir(filepath.Join(mountPoint, name)) {
				dirs = append(dirs, filepath.Join(mountPoint, name, path))
			}
		}
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir)
	}
	u, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if u.Time.IsZero() || u.Tasks != 0 || u.CPU.Total != 0 {
		t.Errorf("%+v", u)
	}
	if p, err := ReadProcesses(t.Context(), path, os.Getpid()); err != nil || p.Count != 0 || p.OpenFiles == 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestProcesses(t *testing.T) {
	var p Processes
	p.add(t.Context(), "/proc/self")
	if p.Count != 1 || p.Threads == 0 || p.Descriptors < 3 {
		t.Errorf("%+v", p)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	var none Processes
	if none.add(ended, "/proc/self"); none.Threads != 0 || none.Descriptors != 0 {
		t.Errorf("read without a caller: %+v", none)
	}
	var s States
	for _, stat := range []string{
		"1 (a) b) R 0", "2 (c) S 0", "3 (d) T 0", "4 (e) D 0", "5 (f) Z 0",
		"", "6", "7 (", "8 (g)", "9 (h) ",
	} {
		s.add([]byte(stat))
	}
	if want := (States{Running: 1, Sleeping: 1, Stopped: 1, Uninterruptible: 1}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	if openFiles(os.Getpid()) == 0 || openFiles(-1) != 0 || openFiles(0) != 0 {
		t.Error("limit of open files")
	}
}
