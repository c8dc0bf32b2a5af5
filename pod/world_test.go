package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/go-digest"
	ocispecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of pod mount a pod's shared memory and need root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

// world is a double of everything below pod: processes, roots, namespaces and networks. It
// outlives the managers of a test as the kernel outlives a daemon.
type world struct {
	mu        sync.Mutex
	procs     map[string]*proc // by container id
	snapshots map[string]string
	users     map[string]podconfig.IDMaps // of snapshots
	labels    map[string]string           // of snapshots
	layers    map[string][]digest.Digest
	contents  map[string]fs.FS // of roots, by layersKey; others have the same files
	networks  map[string]network.Pod
	pins      map[string]bool
	hostnames map[string]string // set again, by pin
	images    map[string]image.Image
	ranges    []netip.Prefix
	nextPid   int
	live      *hands
	calls     []string
	silent    map[string]error // pods whose shims do not answer List

	// before, if it has the name of a call ("shim.Create"), is run first and can
	// fail it or make it wait: see fault and repair.
	before map[string]func(ctx context.Context) error
}

// proc is a container's init. What it does is its args[0]: "run" until it is told to
// end, "stubborn" until SIGKILL, "exit N" at once, "missing" is not there.
type proc struct {
	podID    string
	handler  string
	args     []string
	pid      int
	state    client.State
	code     int32
	exitedAt time.Time
	oom      bool
	limits   *specs.LinuxResources
	signals  []syscall.Signal
	paused   bool
	// unread means that the shim cannot read its own record: it lists, kills and deletes the
	// container, but reports neither its state nor its exit. It may not know its pod either.
	unread bool
	// checkpoint is what it was made from.
	checkpoint string
	// logDirectory is what its log must not lead out of.
	logDirectory string
}

func newWorld() *world {
	w := &world{
		procs: map[string]*proc{}, snapshots: map[string]string{}, users: map[string]podconfig.IDMaps{}, labels: map[string]string{},
		layers: map[string][]digest.Digest{}, contents: map[string]fs.FS{}, networks: map[string]network.Pod{},
		pins: map[string]bool{}, hostnames: map[string]string{}, images: map[string]image.Image{}, nextPid: 100,
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
	h.mu.Lock()
	f := h.before[name]
	h.mu.Unlock()
	if f != nil {
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

// take makes hands for a new manager, and tells it of the exits that no one deleted.
func (w *world) take() *hands {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &hands{world: w, events: make(chan client.Event, 4096)}
	w.live = h
	for id, p := range w.procs {
		if p.state == client.StateStopped {
			h.events <- client.Event{PodID: p.podID, ID: id, Kind: client.EventExit, ExitCode: p.code, ExitedAt: p.exitedAt, OOMKilled: p.oom}
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
	if p.unread {
		return
	}
	if w.live != nil && !w.live.dead {
		w.live.events <- client.Event{PodID: p.podID, ID: id, Kind: client.EventExit, Pid: p.pid, ExitCode: code, ExitedAt: p.exitedAt}
	}
}

// fault sets what happens before a call; repair takes it back.
func (w *world) fault(call string, f func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before[call] = f
}

func (w *world) repair(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.before, call)
}

// proc returns what the shim has of a container.
func (w *world) proc(id string) *proc {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[id]
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
		// A pod that a failed test left has its shared memory mounted.
		left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		for _, m := range left {
			err = errors.Join(err, unix.Unmount(m.Mountpoint, unix.MNT_DETACH))
		}
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// manager makes and starts a manager on the bench, with options and dependencies as changed.
func (b *bench) manager(change ...func(*Options, *Deps)) (*Manager, *hands) {
	b.t.Helper()
	m, h := b.unstarted(change...)
	if err := m.Start(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
	return m, h
}

func (b *bench) unstarted(change ...func(*Options, *Deps)) (*Manager, *hands) {
	h := b.take()
	o := Options{StateDir: b.state, ShimBinary: "/shim"}
	d := Deps{
		Shim: fakeShim{h}, Images: fakeImages{h}, Snapshots: fakeSnapshots{h},
		Network: fakeNetwork{h}, Namespaces: fakePins{h}, Meter: fakeMeter{h},
	}
	for _, c := range change {
		c(&o, &d)
	}
	m := New(o, d)
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

func podConfig(name string) podconfig.Pod {
	return podconfig.Pod{Name: name, Namespace: "default", UID: "uid-" + name, Hostname: "host-" + name}
}

func containerConfig(args ...string) podconfig.Container {
	return podconfig.Container{Name: "c", Image: "busybox", Command: args}
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

// ended waits for a container's exit to be noted.
func ended(t testing.TB, m *Manager, id string) state.Container {
	t.Helper()
	e := m.containers.Exact(id)
	select {
	case <-m.exits.Of(id, func() bool { return e.Get().Phase == state.ContainerExited }):
	case <-time.After(patience):
		t.Fatal("the container does not end")
	}
	return must[state.Container](t)(m.Container(id))
}
