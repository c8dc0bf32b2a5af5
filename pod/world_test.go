package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	ocispecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/snapshot"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of pod mount a pod's shared memory and need root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// world stands for everything below pod: processes, roots, namespaces and networks. It
// outlives the managers of a test as the kernel outlives a daemon.
type world struct {
	mu        sync.Mutex
	procs     map[string]*proc // by container id
	snapshots map[string]string
	networks  map[string]network.Pod
	pins      map[string]bool
	images    map[string]image.Image
	nextPid   int
	live      *hands
	calls     []string

	// before, if it has the name of a call ("shim.Create"), is run first and can
	// fail it or make it wait. Set before the manager is used.
	before map[string]func(ctx context.Context) error
}

// proc is a container's init. What it does is its args[0]: "run" until it is told to
// end, "stubborn" until SIGKILL, "exit N" at once, "missing" is not there.
type proc struct {
	podID    string
	args     []string
	pid      int
	state    client.State
	code     int32
	exitedAt time.Time
	limits   *specs.LinuxResources
	signals  []syscall.Signal
}

func newWorld() *world {
	w := &world{
		procs: map[string]*proc{}, snapshots: map[string]string{}, networks: map[string]network.Pod{},
		pins: map[string]bool{}, images: map[string]image.Image{}, nextPid: 100,
		before: map[string]func(context.Context) error{},
	}
	w.images["busybox"] = image.Image{
		ID: digest.FromString("busybox"), RepoDigests: []string{"busybox@sha256:1"},
		Config: ocispecv1.ImageConfig{Entrypoint: []string{"run"}, Env: []string{"A=image"}},
	}
	return w
}

// hands are what one manager holds of the world. Once dead, they do nothing.
type hands struct {
	*world
	dead   bool // guarded by world.mu
	events chan client.Event
}

var errDead = errors.New("this daemon is dead")

// do is the frame of every call: the fault of the test, then the deed, under the lock.
func (h *hands) do(ctx context.Context, name string, deed func() error) error {
	if f := h.before[name]; f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead {
		return errDead
	}
	h.calls = append(h.calls, name)
	return deed()
}

// take makes hands for a new manager, and tells it of the exits that nobody deleted.
func (w *world) take() *hands {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &hands{world: w, events: make(chan client.Event, 4096)}
	w.live = h
	for id, p := range w.procs {
		if p.state == client.StateStopped {
			h.events <- client.Event{PodID: p.podID, ID: id, Kind: client.EventExit, ExitCode: p.code, ExitedAt: p.exitedAt}
		}
	}
	return h
}

func (w *world) kill(h *hands) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h.dead = true
}

// exit ends a container's init.
func (w *world) exit(id string, code int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exitLocked(id, code)
}

func (w *world) exitLocked(id string, code int32) {
	p := w.procs[id]
	if p == nil || p.state == client.StateStopped {
		return
	}
	p.state, p.code, p.exitedAt = client.StateStopped, code, time.Now()
	if w.live != nil && !w.live.dead {
		w.live.events <- client.Event{PodID: p.podID, ID: id, Kind: client.EventExit, Pid: p.pid, ExitCode: code, ExitedAt: p.exitedAt}
	}
}

func (w *world) count(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.calls {
		if c == name {
			n++
		}
	}
	return n
}

type fakeShim struct{ *hands }

func (s fakeShim) Events() <-chan client.Event { return s.events }

func (s fakeShim) Create(ctx context.Context, r client.CreateRequest) (pid int, err error) {
	err = s.do(ctx, "shim.Create", func() error {
		if s.procs[r.ID] != nil {
			return client.ErrExists
		}
		b, err := os.ReadFile(filepath.Join(r.Bundle, "config.json"))
		if err != nil {
			return err
		}
		var spec specs.Spec
		if err := json.Unmarshal(b, &spec); err != nil {
			return err
		}
		if spec.Process.Args[0] == "missing" {
			return errors.New("exec: \"missing\": executable file not found in $PATH")
		}
		s.nextPid++
		pid = s.nextPid
		s.procs[r.ID] = &proc{podID: r.PodID, args: spec.Process.Args, pid: pid, state: client.StateCreated, limits: spec.Linux.Resources}
		return nil
	})
	return pid, err
}

func (s fakeShim) StartContainer(ctx context.Context, _, id string) error {
	return s.do(ctx, "shim.StartContainer", func() error {
		p := s.procs[id]
		if p == nil {
			return client.ErrNotFound
		}
		p.state = client.StateRunning
		if p.args[0] == "exit" {
			code, _ := strconv.Atoi(p.args[1])
			s.exitLocked(id, int32(code))
		}
		return nil
	})
}

func (s fakeShim) Kill(ctx context.Context, r client.KillRequest) error {
	return s.do(ctx, "shim.Kill", func() error {
		p := s.procs[r.ID]
		if p == nil {
			return client.ErrNotFound
		}
		if p.state == client.StateStopped {
			return client.ErrNotRunning
		}
		p.signals = append(p.signals, r.Signal)
		if r.Signal == syscall.SIGKILL || p.args[0] != "stubborn" {
			s.exitLocked(r.ID, 128+int32(r.Signal))
		}
		return nil
	})
}

func (s fakeShim) Delete(ctx context.Context, _, id string) error {
	return s.do(ctx, "shim.Delete", func() error {
		delete(s.procs, id)
		return nil
	})
}

func (s fakeShim) DeletePod(ctx context.Context, podID string) error {
	return s.do(ctx, "shim.DeletePod", func() error {
		for id, p := range s.procs {
			if p.podID == podID {
				return fmt.Errorf("container %s of the pod is left", id)
			}
		}
		return nil
	})
}

func (s fakeShim) Status(ctx context.Context, _, id string) (st client.Status, err error) {
	err = s.do(ctx, "shim.Status", func() error {
		p := s.procs[id]
		if p == nil {
			return client.ErrNotFound
		}
		st = client.Status{Pid: p.pid, State: p.state, ExitCode: p.code, ExitedAt: p.exitedAt}
		return nil
	})
	return st, err
}

func (s fakeShim) List(ctx context.Context) (map[string][]string, error) {
	out := map[string][]string{}
	err := s.do(ctx, "shim.List", func() error {
		for id, p := range s.procs {
			out[p.podID] = append(out[p.podID], id)
		}
		return nil
	})
	return out, err
}

func (s fakeShim) Stats(ctx context.Context, _, _ string) (runtime.Stats, error) {
	st := runtime.Stats{CPUUsage: 7, MemoryWorkingSet: 10, MemoryLimit: 100}
	return st, s.do(ctx, "shim.Stats", func() error { return nil })
}

func (s fakeShim) Update(ctx context.Context, _, id string, r *specs.LinuxResources) error {
	return s.do(ctx, "shim.Update", func() error {
		s.procs[id].limits = r
		return nil
	})
}

func (s fakeShim) ReopenLog(ctx context.Context, _, _ string) error {
	return s.do(ctx, "shim.ReopenLog", func() error { return nil })
}

func (s fakeShim) Exec(ctx context.Context, r client.ExecRequest) (int32, error) {
	if err := s.do(ctx, "shim.Exec", func() error { return nil }); err != nil {
		return 0, err
	}
	switch r.Process.Args[0] {
	case "sleep":
		<-ctx.Done()
		return 0, ctx.Err()
	case "flood":
		chunk := make([]byte, 1<<20)
		for range 20 {
			r.Streams.Stdout.Write(chunk)
		}
	case "env":
		fmt.Fprint(r.Streams.Stdout, strings.Join(r.Process.Env, "\n"))
	}
	return 3, nil
}

func (s fakeShim) Attach(ctx context.Context, _, _ string, _ client.Streams) error {
	return s.do(ctx, "shim.Attach", func() error { return nil })
}

type fakeImages struct{ *hands }

func (s fakeImages) Get(ref string) (image.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	img, ok := s.images[ref]
	if !ok {
		return img, image.ErrNotFound
	}
	return img, nil
}

type fakeSnapshots struct{ *hands }

func (s fakeSnapshots) Prepare(ctx context.Context, id string, o snapshot.PrepareOptions) (snapshot.Snapshot, error) {
	snap := snapshot.Snapshot{ID: id, Target: o.Target, Upper: "/upper/" + id}
	return snap, s.do(ctx, "snapshots.Prepare", func() error {
		s.snapshots[id] = o.Target
		if err := os.MkdirAll(filepath.Join(o.Target, "etc"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(o.Target, "etc/passwd"), []byte("app:x:33:44::/home/app:/bin/sh\n"), 0o644)
	})
}

func (s fakeSnapshots) Remove(ctx context.Context, id string) error {
	return s.do(ctx, "snapshots.Remove", func() error { return s.drop(id) })
}

func (s fakeSnapshots) drop(id string) error {
	if p := s.procs[id]; p != nil && p.state != client.StateStopped {
		return fmt.Errorf("snapshot %s removed under a container that is %s", id, p.state)
	}
	target := s.snapshots[id]
	delete(s.snapshots, id)
	if target == "" {
		return nil
	}
	return os.RemoveAll(target)
}

func (s fakeSnapshots) Usage(ctx context.Context, _ string) (snapshot.Usage, error) {
	return snapshot.Usage{Bytes: 4096, Inodes: 2}, s.do(ctx, "snapshots.Usage", func() error { return nil })
}

func (s fakeSnapshots) Recover(ctx context.Context, claimed []string) error {
	return s.do(ctx, "snapshots.Recover", func() error {
		for id := range s.snapshots {
			if !slices.Contains(claimed, id) {
				if err := s.drop(id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

type fakeNetwork struct{ *hands }

func (s fakeNetwork) Setup(ctx context.Context, p network.Pod) (network.Result, error) {
	r := network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	return r, s.do(ctx, "network.Setup", func() error {
		s.networks[p.ID] = p
		return nil
	})
}

func (s fakeNetwork) Teardown(ctx context.Context, p network.Pod) error {
	return s.do(ctx, "network.Teardown", func() error {
		delete(s.networks, p.ID)
		return nil
	})
}

func (s fakeNetwork) Ready(ctx context.Context) error {
	return s.do(ctx, "network.Ready", func() error { return nil })
}

func (s fakeNetwork) Recover(ctx context.Context, claimed []string) error {
	return s.do(ctx, "network.Recover", func() error {
		maps.DeleteFunc(s.networks, func(id string, _ network.Pod) bool { return !slices.Contains(claimed, id) })
		return nil
	})
}

type fakePins struct{ *hands }

func (s fakePins) Root(dir string) error { return os.MkdirAll(dir, 0o711) }

func (s fakePins) Create(ctx context.Context, dir string, spec nspin.Spec) (nspin.Set, error) {
	var set nspin.Set
	return set, s.do(ctx, "pins.Create", func() error {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		s.pins[dir] = true
		for _, ns := range []struct {
			want bool
			name string
			path *string
		}{{spec.Net, "net", &set.Net}, {spec.IPC, "ipc", &set.IPC}, {spec.UTS, "uts", &set.UTS}} {
			if !ns.want {
				continue
			}
			*ns.path = filepath.Join(dir, ns.name)
			if err := os.WriteFile(*ns.path, nil, 0o600); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s fakePins) Remove(ctx context.Context, dir string) error {
	return s.do(ctx, "pins.Remove", func() error {
		if _, connected := s.networks[filepath.Base(dir)]; connected {
			return errors.New("namespace removed before the network was torn down")
		}
		delete(s.pins, dir)
		return os.RemoveAll(dir)
	})
}

// bench is a test's world with a state directory.
type bench struct {
	*world
	t     testing.TB
	state string
	// pointBeforeFiles says that a crash comes before a pod's files are begun.
	pointBeforeFiles bool
}

func newBench(t testing.TB) *bench {
	return &bench{world: newWorld(), t: t, state: stateDir(t)}
}

// stateDir is a directory on a tmpfs, as a daemon's state directory is.
func stateDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "pod-test-")
	if err != nil {
		return t.TempDir() // no /dev/shm here; only slower
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// manager makes and starts a manager on the bench; the test closes it at its end.
func (b *bench) manager() (*Manager, *hands) {
	b.t.Helper()
	m, h := b.unstarted()
	if err := m.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return m, h
}

func (b *bench) unstarted() (*Manager, *hands) {
	h := b.take()
	m := New(Options{StateDir: b.state, ShimBinary: "/shim"}, Deps{
		Shim: fakeShim{h}, Images: fakeImages{h}, Snapshots: fakeSnapshots{h},
		Network: fakeNetwork{h}, Namespaces: fakePins{h},
	})
	b.t.Cleanup(func() { m.Close() })
	return m, h
}

// nothingLeft fails the test if anything of a pod or container is there still.
func (b *bench) nothingLeft() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, p := range b.procs {
		b.t.Errorf("left: container %.8s in the shim, %s", id, p.state)
	}
	for id := range b.snapshots {
		b.t.Errorf("left: snapshot %.8s", id)
	}
	for id := range b.networks {
		b.t.Errorf("left: network of pod %.8s", id)
	}
	for dir := range b.pins {
		b.t.Errorf("left: namespaces %s", dir)
	}
	for _, sub := range []string{"pods", "containers", "ns"} {
		entries, err := os.ReadDir(filepath.Join(b.state, sub))
		if err != nil {
			b.t.Error(err)
		}
		for _, e := range entries {
			b.t.Errorf("left: %s/%s", sub, e.Name())
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(b.state))
	if err != nil {
		b.t.Error(err)
	}
	for _, m := range mounts {
		b.t.Errorf("left: mount %s", m.Mountpoint)
	}
}

// Shorthands for what nearly every test does.

func podConfig(name string) Config {
	return Config{Name: name, Namespace: "default", UID: "uid-" + name, Hostname: "host-" + name}
}

func containerConfig(args ...string) ContainerConfig {
	return ContainerConfig{Name: "c", Image: "busybox", Command: args}
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// idle waits until the manager's background work is done.
func idle(t testing.TB, m *Manager) {
	t.Helper()
	m.clean.mu.Lock()
	c := m.clean.idle
	m.clean.mu.Unlock()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("background work does not end")
	}
}

// ended waits for a container's exit to be noted.
func ended(t testing.TB, m *Manager, id string) Container {
	t.Helper()
	e := m.containers.exact(id)
	select {
	case <-m.exits.of(id, func() bool { return e.get().Phase == containerExited }):
	case <-time.After(10 * time.Second):
		t.Fatal("the container does not end")
	}
	return must[Container](t)(m.Container(id))
}
