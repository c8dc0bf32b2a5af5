package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// errCrashed is what a fault point of a dead manager returns when the test is over.
var errCrashed = errors.New("crashed")

// crash makes m die at a fault point: whatever is under way there stops for good, and
// nothing that it does elsewhere has an effect any more. The channel is closed then.
func (b *bench) crash(m *Manager, h *hands, point string) <-chan struct{} {
	crashed, over := make(chan struct{}), make(chan struct{})
	b.t.Cleanup(func() { close(over) }) // runs before m is closed
	var died bool
	m.faultAt = func(_ context.Context, p fault.Point) error {
		b.mu.Lock()
		now := string(p) == point && !died
		if now {
			died, h.dead = true, true
		}
		dead := h.dead
		b.mu.Unlock()
		if now {
			b.awaitFiles(m)
			freeze(m, over)
			close(crashed)
		}
		if dead {
			<-over
			return errCrashed
		}
		return nil
	}
	return crashed
}

// freeze ends all writing of records by a dead manager: what is under way is finished,
// and what would come later, such as the end of a clean-up, waits for the test's end.
func freeze(m *Manager, over <-chan struct{}) {
	for _, e := range m.pods.Each(func(*state.PodRecord) bool { return true }) {
		hold(e, over)
	}
	for _, e := range m.containers.Each(func(*state.ContainerRecord) bool { return true }) {
		hold(e, over)
	}
}

// hold keeps an entry's record from being replaced. Of an erased entry, Update returns at once.
func hold[T any](e *table.Entry[T], over <-chan struct{}) {
	held := make(chan struct{})
	reached := sync.OnceFunc(func() { close(held) })
	go func() {
		defer reached()
		_ = e.Update(func(*T) {
			reached()
			<-over
			runtime.Goexit() // without a write
		})
	}()
	<-held
}

// awaitFiles waits for the files of pods that are made next to the step that crashes: a
// real crash would stop them, here they must not come after the recovery.
func (b *bench) awaitFiles(m *Manager) {
	deadline := time.Now().Add(patience)
	for _, e := range m.pods.Each(func(r *state.PodRecord) bool { return r.Phase == state.PodMaking }) {
		if b.pointBeforeFiles {
			return
		}
		for {
			// The last step, and nothing else is sticky.
			if st, err := os.Stat(m.dirs.PodFile(e.ID, "shm")); err == nil && st.Mode()&os.ModeSticky != 0 {
				break
			}
			if time.Now().After(deadline) {
				b.t.Error("the pod's files are not made in time")
				return
			}
		}
	}
}

// TestCrashAtEveryPoint kills the daemon at each fault point of a pod's life, starts
// another one on the same records and the same world, and looks what it makes of it.
func TestCrashAtEveryPoint(t *testing.T) {
	type want struct {
		pod       state.State          // "" for none
		container state.ContainerState // "" for none
	}
	for _, tc := range []struct {
		point string
		grace time.Duration
		want  want
	}{
		{"pod.run.recorded", 0, want{}},
		{"pod.run.namespaces", 0, want{}},
		{"pod.run.network", 0, want{}},
		{"pod.run.ready", 0, want{state.Ready, ""}},
		{"pod.create.recorded", 0, want{state.Ready, ""}},
		{"pod.create.snapshot", 0, want{state.Ready, ""}},
		{"pod.create.volume", 0, want{state.Ready, ""}},
		{"pod.init.recorded", 0, want{state.Ready, ""}},
		{"pod.init.started", 0, want{state.Ready, ""}},
		{"pod.start.recorded", 0, want{state.Ready, state.Created}},
		{"pod.start.started", 0, want{state.Ready, state.Running}},
		{"pod.update.changed", 0, want{state.Ready, state.Running}},
		{"pod.update.rewritten", 0, want{state.Ready, state.Running}},
		{"pod.stop.container.recorded", 200 * time.Millisecond, want{state.Ready, state.Exited}},
		{"pod.stop.container.recorded", time.Hour, want{state.Ready, state.Running}},
		{"pod.stop.container.kill", 0, want{state.Ready, state.Running}},
		{"pod.remove.container.recorded", 0, want{state.Ready, ""}},
		{"pod.remove.container.ended", 0, want{state.Ready, ""}},
		{"pod.remove.container.snapshot", 0, want{state.Ready, ""}},
		{"pod.stop.recorded", 0, want{state.NotReady, ""}},
		{"pod.stop.killed", 0, want{state.NotReady, ""}},
		{"pod.stop.stopped", 0, want{state.NotReady, ""}},
		{"pod.remove.containers", 0, want{state.NotReady, ""}},
		{"pod.remove.recorded", 0, want{}},
		{"pod.remove.cleaned", 0, want{}},
		// In the background, while the pod is removed.
		{"pod.clean.network", 0, want{state.NotReady, ""}},
		{"pod.clean.namespaces", 0, want{state.NotReady, ""}},
	} {
		for _, pid := range []podconfig.NamespaceMode{podconfig.NamespaceContainer, podconfig.NamespacePod} {
			if strings.HasPrefix(tc.point, "pod.init.") && pid != podconfig.NamespacePod {
				continue // has no init
			}
			t.Run(fmt.Sprintf("%s/grace=%s/pid=%s", tc.point, tc.grace, pid), func(t *testing.T) {
				b := newBench(t)
				b.pointBeforeFiles = tc.point == "pod.run.recorded"
				m1, h1 := b.manager()
				crashed := b.crash(m1, h1, tc.point)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go wholeLife(ctx, m1, pid, max(tc.grace, 0))
				select {
				case <-crashed:
				case <-time.After(patience):
					t.Fatal("the point was not reached")
				}
				cancel()

				m2, _ := b.manager()
				idle(t, m2)
				if tc.want.container == state.Exited {
					for c := range m2.Containers(state.ContainerFilter{}) {
						ended(t, m2, c.ID)
					}
				}
				var got want
				for p := range m2.Pods(state.PodFilter{}) {
					got.pod = p.State
				}
				for c := range m2.Containers(state.ContainerFilter{}) {
					got.container = c.State
				}
				if got != tc.want && !(strings.HasPrefix(tc.point, "pod.clean.") && got == want{}) {
					t.Errorf("recovered to %+v, want %+v", got, tc.want)
				}
				b.agrees(m2)
				for p := range m2.Pods(state.PodFilter{}) {
					ok(t, m2.Remove(t.Context(), p.ID))
				}
				idle(t, m2)
				b.nothingLeft()
			})
		}
	}
}

// TestEveryFaultPointIsNamed: the tests here name all fault points of pod/ where a daemon may be
// killed, so none is forgotten that is added later.
func TestEveryFaultPointIsNamed(t *testing.T) {
	tests := ""
	for _, path := range must[[]string](t)(filepath.Glob("*_test.go")) {
		tests += string(must[[]byte](t)(os.ReadFile(path)))
	}
	declared := regexp.MustCompile(`fault\.New\("([^"]*)"\)`)
	points := 0
	for _, path := range must[[]string](t)(filepath.Glob("*/faults.go")) {
		for _, found := range declared.FindAllStringSubmatch(string(must[[]byte](t)(os.ReadFile(path))), -1) {
			if points++; !strings.Contains(tests, strconv.Quote(found[1])) {
				t.Errorf("%s: no test kills a daemon at %s", path, found[1])
			}
		}
	}
	if points < 30 {
		t.Errorf("only %d fault points were found", points)
	}
}

// wholeLife leads one pod and one container through everything.
func wholeLife(ctx context.Context, m *Manager, pid podconfig.NamespaceMode, grace time.Duration) {
	cfg := podConfig("p")
	cfg.Namespaces.PID = pid
	podID, err := m.Run(ctx, cfg)
	if err != nil {
		return
	}
	c := containerConfig("stubborn")
	c.Mounts = []podconfig.Mount{{ContainerPath: "/image", Image: "busybox"}}
	c.Security.Namespaces.PID = pid
	id, err := m.Create(ctx, podID, c)
	if err != nil {
		return
	}
	for _, step := range []func() error{
		func() error { return m.StartContainer(ctx, id) },
		func() error { return m.UpdateResources(ctx, id, podconfig.Resources{MemoryLimit: 1 << 20}, nil) },
		func() error { return m.StopContainer(ctx, id, grace) },
		func() error { return m.RemoveContainer(ctx, id) },
		func() error { return m.Stop(ctx, podID) },
		func() error { return m.Remove(ctx, podID) },
	} {
		if step() != nil {
			return
		}
	}
}

// agrees checks that what a manager says is so.
func (b *bench) agrees(m *Manager) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	known := map[string]bool{}
	for p := range m.Pods(state.PodFilter{}) {
		known[p.ID] = true
		_, connected := b.networks[p.ID]
		if connected != (p.State == state.Ready) || b.pins[m.dirs.NamespacesOf(p.ID)] != (p.State == state.Ready) {
			b.t.Errorf("pod is %s, connected %t, pinned %t", p.State, connected, b.pins[m.dirs.NamespacesOf(p.ID)])
		}
		if init := b.procs[p.ID]; (init != nil) != (p.Pid != 0) {
			b.t.Errorf("pod's init is %v, pid %d", init, p.Pid)
		}
	}
	for c := range m.Containers(state.ContainerFilter{}) {
		known[c.ID] = true
		for _, id := range m.containers.Exact(c.ID).Get().Volumes() {
			known[id] = true
			if b.snapshots[id] == "" {
				b.t.Error("the container has lost a volume")
			}
		}
		p := b.procs[c.ID]
		if running := p != nil && p.state == client.StateRunning; running != (c.State == state.Running) {
			b.t.Errorf("container is %s, in the shim %+v", c.State, p)
		}
		if c.State == state.Running && p.pid != c.Pid {
			b.t.Errorf("pid is %d, in the shim %d", c.Pid, p.pid)
		}
		if b.snapshots[c.ID] == "" {
			b.t.Error("the container has no root")
		}
	}
	for id := range b.procs {
		if !known[id] {
			b.t.Errorf("unknown container %.8s in the shim", id)
		}
	}
	for id := range b.snapshots {
		if !known[id] {
			b.t.Errorf("unknown snapshot %.8s", id)
		}
	}
}

// What happens to a container while the daemon is away is known afterwards.
func TestExitWhileAway(t *testing.T) {
	for _, tc := range []struct {
		name   string
		away   func(b *bench, id string)
		state  state.ContainerState
		code   int32
		reason string
	}{
		{"runs on", func(*bench, string) {}, state.Running, 0, ""},
		{"ends", func(b *bench, id string) { b.exit(id, 5) }, state.Exited, 5, "Error"},
		{"ends unseen", func(b *bench, id string) { b.exit(id, 255); b.procs[id].exitedAt = time.Time{} }, state.Exited, 255, "Unknown"},
		{"ends unseen, out of memory", func(b *bench, id string) {
			b.exit(id, 255)
			b.procs[id].exitedAt, b.procs[id].oom = time.Time{}, true
		}, state.Exited, 255, "OOMKilled"},
		{"is lost", func(b *bench, id string) { delete(b.procs, id) }, state.Exited, 255, "Unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m1, h1 := b.manager()
			podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
			id := must[string](t)(m1.Create(t.Context(), podID, containerConfig("run")))
			ok(t, m1.StartContainer(t.Context(), id))
			before := must[state.Container](t)(m1.Container(id))
			b.kill(h1)
			tc.away(b, id)

			m2, _ := b.manager()
			c := must[state.Container](t)(m2.Container(id))
			if c.State != tc.state || c.ExitCode != tc.code || c.Reason != tc.reason {
				t.Errorf("got %s, code %d, reason %q", c.State, c.ExitCode, c.Reason)
			}
			if !c.StartedAt.Equal(before.StartedAt) || !c.CreatedAt.Equal(before.CreatedAt) {
				t.Error("times changed")
			}
			ok(t, m2.Remove(t.Context(), podID))
			idle(t, m2)
			b.nothingLeft()
		})
	}
}

// A call to the shim that outlives the daemon that made it: what it makes after the
// next one has looked goes with its container or pod.
func TestCreationAfterRecovery(t *testing.T) {
	for _, tc := range []struct {
		point      string
		pid        podconfig.NamespaceMode
		containers int // left by the recovery
	}{
		{"pod.start.recorded", podconfig.NamespaceContainer, 1},
		{"pod.init.recorded", podconfig.NamespacePod, 0},
	} {
		t.Run(tc.point, func(t *testing.T) {
			b := newBench(t)
			m1, h1 := b.manager()
			crashed := b.crash(m1, h1, tc.point)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go wholeLife(ctx, m1, tc.pid, 0)
			select {
			case <-crashed:
			case <-time.After(patience):
				t.Fatal("the point was not reached")
			}
			cancel()
			m2, _ := b.manager()
			idle(t, m2)
			pods, containers := slices.Collect(m2.Pods(state.PodFilter{})), slices.Collect(m2.Containers(state.ContainerFilter{}))
			if len(pods) != 1 || len(containers) != tc.containers {
				t.Fatalf("%d pods, %d containers", len(pods), len(containers))
			}
			late := pods[0].ID // the init's id in the shim
			for _, c := range containers {
				if late = c.ID; c.State != state.Created || !c.StartedAt.IsZero() {
					t.Errorf("container is %s, started at %v", c.State, c.StartedAt)
				}
			}
			b.mu.Lock()
			b.procs[late] = &proc{podID: pods[0].ID, args: []string{"run"}, state: client.StateCreated}
			b.mu.Unlock()
			ok(t, m2.Remove(t.Context(), pods[0].ID))
			idle(t, m2)
			b.nothingLeft()
		})
	}
}

// What has no record is removed, wherever it is.
func TestStrays(t *testing.T) {
	b := newBench(t)
	b.procs["stray"] = &proc{podID: "straypod", args: []string{"run"}, state: client.StateRunning}
	b.networks["straypod"] = network.Pod{ID: "straypod"}
	ns := filepath.Join(b.state, "ns", "straypod")
	b.pins[ns] = true
	for _, dir := range []string{ns, filepath.Join(b.state, "pods", "x"), filepath.Join(b.state, "containers", "y", "rootfs")} {
		ok(t, os.MkdirAll(dir, 0o755))
	}
	b.snapshots["stray"] = filepath.Join(b.state, "containers", "y", "rootfs")
	m, _ := b.manager()
	idle(t, m)
	b.nothingLeft()
}

// What a network plugin did not let go of in time goes when it does: the daemon is up by then.
func TestStrayNetworkIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.networks["straypod"] = network.Pod{ID: "straypod"}
	b.fault("network.Recover", func(context.Context) error { return errors.New("the plugin hangs") })
	m, _ := b.manager()
	idle(t, m)
	b.nothingLeft()
	if b.count("network.Teardown") != 1 {
		t.Errorf("calls %v", b.calls)
	}
}

// A record of a newer daemon is not understood, so nothing is touched.
func TestNewerRecordStays(t *testing.T) {
	b := newBench(t)
	b.networks["new"] = network.Pod{ID: "new"}
	dir := filepath.Join(b.state, "pods", "new")
	ok(t, os.MkdirAll(dir, 0o755))
	file := filepath.Join(dir, "pod.json")
	ok(t, os.WriteFile(file, []byte(`{"version":99,"value":{}}`), 0o600))
	m, _ := b.unstarted()
	if err := m.Start(t.Context()); recordfile.Newer(err) == nil {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); err != nil || len(b.networks) != 1 {
		t.Errorf("touched: %v", err)
	}
}

// A container whose pod's directory is lost keeps running, and goes when it is removed.
func TestContainerWithoutPod(t *testing.T) {
	b := newBench(t)
	m1, h1 := b.manager()
	podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m1.Create(t.Context(), podID, containerConfig("run")))
	ok(t, m1.StartContainer(t.Context(), id))
	b.kill(h1)
	ok(t, mounts.Detach(m1.dirs.PodFiles(podID)))
	ok(t, os.RemoveAll(m1.dirs.Pods().Of(podID)))
	m2, h2 := b.manager()
	idle(t, m2)
	if p := b.proc(id); p == nil || p.state != client.StateRunning || !b.pins[m1.dirs.NamespacesOf(podID)] || len(b.networks) != 1 {
		t.Errorf("container %+v, namespaces %v, networks %v", p, b.pins, b.networks)
	}
	ok(t, m2.RemoveContainer(t.Context(), id))
	b.kill(h2)
	m3, _ := b.manager() // for it, the pod's network has no owner any more
	idle(t, m3)
	b.nothingLeft()
}

// A thousand containers are recovered at once.
func TestRecoveryOfMany(t *testing.T) {
	b := newBench(t)
	m1, h1 := b.manager()
	podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
	const n = 1000
	for i := range n {
		c := containerConfig("run")
		c.Attempt = uint32(i)
		ok(t, m1.StartContainer(t.Context(), must[string](t)(m1.Create(t.Context(), podID, c))))
	}
	b.kill(h1)
	begin := time.Now()
	m2, _ := b.manager()
	t.Logf("recovered %d containers in %v", n, time.Since(begin))
	if running := len(slices.Collect(m2.Containers(state.ContainerFilter{State: state.Running}))); running != n {
		t.Errorf("%d run", running)
	}
	ok(t, m2.Remove(t.Context(), podID))
	idle(t, m2)
	b.nothingLeft()
}
