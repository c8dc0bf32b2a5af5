//go:build vm

package cgroups

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// hogEnv tells this program to be a process that takes so many bytes of memory.
const hogEnv = "CORACLE_TEST_HOG"

func TestMain(m *testing.M) {
	if bytes, err := strconv.Atoi(os.Getenv(hogEnv)); err == nil {
		memory, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(len(memory))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hog takes memory in a cgroup below path, as a container of it would, and says whether it was
// killed.
func hog(t *testing.T, path string, bytes int) (killed bool) {
	t.Helper()
	dir := filepath.Join(mountPoint, path, "container")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(dir)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{fmt.Sprint(hogEnv, "=", bytes)}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(bytes):
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Fatalf("%v\n%s", err, out)
	return false
}

// kills returns how many processes of a cgroup were killed for its memory limit.
func kills(t *testing.T, path string) string {
	t.Helper()
	for line := range strings.Lines(read(mountPoint, path, "memory.events")) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n
		}
	}
	t.Fatalf("no memory.events in %s", path)
	return ""
}

// removeLater removes what a test made, when it is over.
func removeLater(t *testing.T, path string) {
	t.Cleanup(func() {
		if err := removeTree(filepath.Join(mountPoint, path)); err != nil {
			t.Error(err)
		}
	})
}

const (
	podLimit  = 64 << 20
	nodeLimit = 128 << 20
)

// TestLimitsHoldBelowACgroupRoot takes more memory than a pod may have, and more than all pods may,
// below a root that a process from before has made and not enabled any controllers in. It needs a
// kernel with controllers in cgroup v2: `make test-vm` runs it in a virtual machine.
func TestLimitsHoldBelowACgroupRoot(t *testing.T) {
	const root = "/coracle-test-limits"
	removeLater(t, root)
	if err := os.Mkdir(filepath.Join(mountPoint, root), 0o755); err != nil {
		t.Fatal(err)
	}
	if hog(t, root, 2*nodeLimit) {
		t.Fatal("killed without a limit: this machine has too little memory for the test")
	}
	m, err := New(root, Limits{MilliCPU: 1000, MemoryBytes: nodeLimit}, discard)
	if err != nil {
		t.Fatal(err)
	}
	limited := onePod("limited", list("100m", "64Mi"), list("500m", "64Mi"))
	free := onePod("free", nil, nil)
	for _, pod := range []*v1.Pod{limited, free} {
		if _, err := m.Ensure(pod); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		root + "/kubepods/memory.max":            strconv.Itoa(nodeLimit),
		root + "/kubepods/cpu.weight":            strconv.Itoa(1 + (1024-2)*9999/262142),
		m.Parent(limited) + "/memory.max":        strconv.Itoa(podLimit),
		m.Parent(limited) + "/cpu.max":           "50000 100000",
		root + "/kubepods/besteffort/cpu.weight": "1",
	} {
		if got := read(mountPoint, file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	if hog(t, m.Parent(limited), podLimit/2) || hog(t, m.Parent(free), nodeLimit/2) {
		t.Error("killed within the limits")
	}
	if !hog(t, m.Parent(limited), podLimit*3/2) {
		t.Error("a pod has more memory than its limit")
	}
	if got := kills(t, m.Parent(limited)); got != "1" {
		t.Errorf("%s kills in the limited pod", got)
	}
	if !hog(t, m.Parent(free), 2*nodeLimit) {
		t.Error("a pod without a limit has more memory than all pods may have")
	}
	for _, pod := range []*v1.Pod{limited, free} {
		if err := m.Remove(pod.UID); err != nil {
			t.Error(err)
		}
	}
	if left := podsOf(m); len(left) > 0 {
		t.Errorf("cgroups of %v are left", left)
	}
}

// Controllers cannot be enabled in a cgroup that has processes of its own.
func TestARootWithProcessesIsRefused(t *testing.T) {
	const root = "/coracle-test-busy"
	removeLater(t, root)
	dir := filepath.Join(mountPoint, root)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, err = New(root, Limits{MilliCPU: 1000, MemoryBytes: nodeLimit}, discard)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "give --cgroup-root another one") {
		t.Errorf("error %v", err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	m, err := New(root, Limits{MilliCPU: 1000, MemoryBytes: nodeLimit}, discard)
	if err != nil || m.off {
		t.Errorf("after its end: %v", err)
	}
}
