package nspin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make namespaces and mounts: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

var all = Spec{Net: true, IPC: true, UTS: true}

// root returns a mount root that the test's end takes away.
func root(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ns")
	if err := Root(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := RemoveRoot(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// maker makes the namespaces of all tests.
var maker Maker

func create(t testing.TB, dir string, spec Spec) Set {
	t.Helper()
	set, err := maker.Create(t.Context(), dir, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(context.WithoutCancel(t.Context()), dir); err != nil {
			t.Error(err)
		}
	})
	return set
}

// inside runs f on a thread that has entered the set.
func inside(t *testing.T, set Set, f func() error) {
	t.Helper()
	err := ownthread.Run(func() error {
		err := set.each(func(_, pin string) error {
			fd, err := unix.Open(pin, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, 0)
		})
		if err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func sysctl(name string) (string, error) {
	b, err := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b)), err
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var below []string
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); strings.HasPrefix(f[4], dir+"/") {
			below = append(below, f[4])
		}
	}
	return below
}

func TestCreateMakesNamespacesOfItsOwn(t *testing.T) {
	dir := filepath.Join(root(t), "pod")
	set := create(t, dir, all)
	_ = set.each(func(kind, pin string) error {
		if inode(t, pin) == inode(t, "/proc/self/ns/"+kind) {
			t.Errorf("%s is the host's namespace", kind)
		}
		return nil
	})
	if err := Remove(context.WithoutCancel(t.Context()), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory after Remove: %v", err)
	}
	if left := mountsBelow(t, dir); len(left) > 0 {
		t.Errorf("mounts after Remove: %v", left)
	}
}

func TestCreatePinsOnlyWhatIsAsked(t *testing.T) {
	for _, spec := range []Spec{{}, {Net: true}, {IPC: true}, {UTS: true}, {Net: true, UTS: true}} {
		t.Run(fmt.Sprintf("net=%t,ipc=%t,uts=%t", spec.Net, spec.IPC, spec.UTS), func(t *testing.T) {
			dir := filepath.Join(root(t), "pod")
			set := create(t, dir, spec)
			if set != spec.paths(dir) {
				t.Errorf("set = %+v", set)
			}
			entries, err := os.ReadDir(dir)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			want := 0
			_ = set.each(func(string, string) error { want++; return nil })
			if len(entries) != want {
				t.Errorf("%d entries, want %d", len(entries), want)
			}
		})
	}
}

func TestCreateConfigures(t *testing.T) {
	spec := all
	spec.Hostname = "web-0"
	spec.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "0",
		"net.ipv4.ping_group_range":           "0 2147483647",
		"net/ipv4/conf/lo/forwarding":         "1",
		"kernel.shmmax":                       "123456",
		"kernel.sem":                          "300 32000 32 100",
		"fs.mqueue.msg_max":                   "17",
		"kernel.domainname":                   "example.test",
	}
	hostShm, err := sysctl("kernel/shmmax")
	if err != nil {
		t.Fatal(err)
	}
	hostQueues, err := sysctl("fs/mqueue/msg_max")
	if err != nil {
		t.Fatal(err)
	}
	set := create(t, filepath.Join(root(t), "pod"), spec)
	inside(t, set, func() error {
		for name, want := range map[string]string{
			"kernel/hostname":                     "web-0",
			"kernel/domainname":                   "example.test",
			"net/ipv4/ip_unprivileged_port_start": "0",
			"net/ipv4/ping_group_range":           "0\t2147483647",
			"net/ipv4/conf/lo/forwarding":         "1",
			"kernel/shmmax":                       "123456",
			"kernel/sem":                          "300\t32000\t32\t100",
			"fs/mqueue/msg_max":                   "17",
		} {
			got, err := sysctl(name)
			if err != nil {
				return err
			}
			if got != want {
				t.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		lo, err := net.InterfaceByName("lo")
		if err != nil {
			return err
		}
		if lo.Flags&net.FlagUp == 0 {
			t.Error("lo is down")
		}
		return nil
	})
	if now, _ := sysctl("kernel/shmmax"); now != hostShm {
		t.Errorf("the host's kernel.shmmax changed to %s", now)
	}
	if now, _ := sysctl("fs/mqueue/msg_max"); now != hostQueues {
		t.Errorf("the host's fs.mqueue.msg_max changed to %s", now)
	}
}

func TestCreateRefuses(t *testing.T) {
	with := func(spec Spec, name, value string) Spec {
		spec.Sysctls = map[string]string{name: value}
		return spec
	}
	long := all
	long.Hostname = strings.Repeat("h", maxHostname+1)
	for _, tc := range []struct {
		name, says string
		spec       Spec
	}{
		{"long host name", "longer than 64", long},
		{"node-wide sysctl", `"kernel.panic" is not namespaced`, with(all, "kernel.panic", "1")},
		{"vm sysctl", `"vm.overcommit_memory" is not namespaced`, with(all, "vm.overcommit_memory", "1")},
		{"kernel.hostname", "is not namespaced", with(all, "kernel.hostname", "x")},
		{"fs outside mqueue", "is not namespaced", with(all, "fs.file-max", "1")},
		{"only net", "is not namespaced", with(all, "net", "1")},
		{"empty", "malformed", with(all, "", "1")},
		{"dots", "malformed", with(all, "net..ipv4", "1")},
		{"climbing", "malformed", with(all, "net/../kernel/panic", "1")},
		{"climbing in dotted form", "malformed", with(all, "net.//.kernel.panic", "1")},
		{"climbing as one part", "malformed", with(all, "fs.mqueue.//", "1")},
		{"NUL", "malformed", with(all, "net.ipv4\x00", "1")},
		{"net on host network", "host's network namespace", with(Spec{IPC: true}, "net.ipv4.ip_forward", "1")},
		{"ipc on host ipc", "host's IPC namespace", with(Spec{Net: true}, "kernel.shmmax", "1")},
		{"mqueue on host ipc", "host's IPC namespace", with(Spec{Net: true}, "fs.mqueue.msg_max", "1")},
		{"domainname on host uts", "host's UTS namespace", with(Spec{Net: true}, "kernel.domainname", "x")},
		{"unknown", "does not have it", with(all, "net.ipv4.no_such_thing", "1")},
		{"bad value", `refuses the value "many"`, with(all, "net.ipv4.ip_unprivileged_port_start", "many")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(root(t), "pod")
			_, err := maker.Create(t.Context(), dir, tc.spec)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want ErrInvalid saying %q", err, tc.says)
			}
			if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		})
	}
}

func TestCreateTwiceReturnsTheSameNamespaces(t *testing.T) {
	dir := filepath.Join(root(t), "pod")
	set := create(t, dir, all)
	was := inode(t, set.Net)
	again := create(t, dir, all)
	if again != set || inode(t, again.Net) != was {
		t.Error("the second Create made new namespaces")
	}
	if n := len(mountsBelow(t, dir)); n != 3 {
		t.Errorf("%d mounts, want 3", n)
	}
}

func TestCreateReplacesWhatACrashLeft(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"empty directory": func(t *testing.T, dir string) {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		},
		"file without a mount": func(t *testing.T, dir string) {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "net"), nil, 0o444); err != nil {
				t.Fatal(err)
			}
		},
		"one of three": func(t *testing.T, dir string) { create(t, dir, Spec{Net: true}) },
		"mounted twice, one missing": func(t *testing.T, dir string) {
			set := create(t, dir, Spec{Net: true, IPC: true})
			if err := unix.Mount(set.Net, set.Net, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root(t), "pod")
			spoil(t, dir)
			set := create(t, dir, all)
			_ = set.each(func(kind, pin string) error {
				if !pinned(pin) {
					t.Errorf("%s is not pinned", kind)
				}
				return nil
			})
			if n := len(mountsBelow(t, dir)); n != 3 {
				t.Errorf("%d mounts, want 3", n)
			}
		})
	}
}

func TestRemoveNothing(t *testing.T) {
	if err := Remove(t.Context(), filepath.Join(t.TempDir(), "none", "pod")); err != nil {
		t.Error(err)
	}
}

func TestRemoveKeepsForeignFiles(t *testing.T) {
	dir := filepath.Join(root(t), "pod")
	create(t, dir, all)
	mine := filepath.Join(dir, "note")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(context.WithoutCancel(t.Context()), dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(mine); err != nil {
		t.Error(err)
	}
}

func TestRootIsIdempotentAndUnbindable(t *testing.T) {
	dir := root(t)
	for range 2 {
		if err := Root(dir); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), " "+dir+" "); n != 1 {
		t.Errorf("%d mounts on the root, want 1", n)
	}
	set := create(t, filepath.Join(dir, "pod"), all)

	// As a container that binds the whole state directory does.
	parent := filepath.Dir(dir)
	copied := t.TempDir()
	if err := unix.Mount(parent, copied, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(copied, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if left := mountsBelow(t, copied); len(left) > 0 {
		t.Errorf("a recursive bind copied the pins: %v", left)
	}
	if !pinned(set.Net) {
		t.Error("pin lost")
	}
}

func TestRootDoesNotPropagate(t *testing.T) {
	// A shared mount with a peer, as / is under systemd.
	base := t.TempDir()
	a, b := filepath.Join(base, "a"), filepath.Join(base, "b")
	for _, d := range []string{a, b} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []struct {
		src, dst string
		flags    uintptr
	}{{a, a, unix.MS_BIND}, {"", a, unix.MS_SHARED}, {a, b, unix.MS_BIND}} {
		if err := unix.Mount(m.src, m.dst, "", m.flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, d := range []string{b, a} {
			if err := unix.Unmount(d, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}()
	dir := filepath.Join(a, "ns")
	if err := Root(dir); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := RemoveRoot(dir); err != nil {
			t.Error(err)
		}
	}()
	create(t, filepath.Join(dir, "pod"), all)
	for _, m := range mountsBelow(t, b) {
		if strings.HasPrefix(m, b+"/ns/") {
			t.Errorf("the pin spread to %s", m)
		}
	}
	if err := Remove(t.Context(), filepath.Join(dir, "pod")); err != nil {
		t.Error(err)
	}
}

func TestRemoveRootNothing(t *testing.T) {
	if err := RemoveRoot(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
}

func TestThreadsAreThrownAway(t *testing.T) {
	dir := root(t)
	host := inode(t, "/proc/self/ns/net")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			pod := filepath.Join(dir, fmt.Sprint(i))
			if _, err := maker.Create(t.Context(), pod, all); err != nil {
				t.Error(err)
			}
			if err := Remove(context.WithoutCancel(t.Context()), pod); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// A thread ends a little after its goroutine; nothing announces it.
	deadline := time.Now().Add(2 * time.Minute)
	for {
		strays := 0
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st) == nil && st.Ino != host {
				strays++
			}
		}
		if strays == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d threads are still in a pod's namespace", strays, len(tasks))
		}
		runtime.Gosched()
	}
}

func FuzzSysctlParts(f *testing.F) {
	for _, s := range []string{"net.ipv4.ip_forward", "net/ipv4/conf/eth0.1/x", "a..b", "../x", "", "net.//.x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		parts, err := sysctlParts(name)
		if err != nil {
			return
		}
		path := "/proc/sys/" + strings.Join(parts, "/")
		if filepath.Clean(path) != path || strings.Count(path, "/") != len(parts)+2 {
			t.Errorf("%q leads to %q", name, path)
		}
	})
}

func BenchmarkCreateRemove(b *testing.B) {
	dir := root(b)
	var made, gone time.Duration
	for i := 0; b.Loop(); i++ {
		pod := filepath.Join(dir, fmt.Sprint(i))
		start := time.Now()
		if _, err := maker.Create(b.Context(), pod, all); err != nil {
			b.Fatal(err)
		}
		mid := time.Now()
		if err := Remove(context.WithoutCancel(b.Context()), pod); err != nil {
			b.Fatal(err)
		}
		made += mid.Sub(start)
		gone += time.Since(mid)
	}
	b.ReportMetric(float64(made.Microseconds())/float64(b.N), "µs/create")
	b.ReportMetric(float64(gone.Microseconds())/float64(b.N), "µs/remove")
}

func BenchmarkUnshareOnly(b *testing.B) {
	for b.Loop() {
		if err := ownthread.Run(func() error {
			return unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestSetHostname(t *testing.T) {
	spec := all
	spec.Hostname = "before"
	set := create(t, filepath.Join(root(t), "pod"), spec)
	if err := SetHostname(set.UTS, "after"); err != nil {
		t.Fatal(err)
	}
	inside(t, set, func() error {
		name, err := os.Hostname()
		if name != "after" {
			t.Errorf("host name %q", name)
		}
		return err
	})
	if err := SetHostname(set.UTS, strings.Repeat("x", 65)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a long name: %v", err)
	}
	if err := SetHostname(set.UTS+"-none", "x"); err == nil {
		t.Error("no namespace, no error")
	}
}
