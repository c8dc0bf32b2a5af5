package pod

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/recovery"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// While the shim hangs, lists are served from the records, and operations wait.
func TestRecoveryWaitsForShimInBackground(t *testing.T) {
	b := newBench(t)
	_, podID, id := b.lone()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{world: b.world, t: t, state: b.state}
		hung, release := make(chan struct{}, 64), make(chan struct{})
		b.fault("shim.List", hanging(hung, release))
		m, _ := b.unstarted()
		begin := time.Now()
		ok(t, m.Start(t.Context()))
		if took := time.Since(begin); took != recovery.StartWait {
			t.Errorf("Start took %v", took)
		}
		if err := m.Ready(); !errors.Is(err, errdefs.ErrUnavailable) {
			t.Errorf("ready: %v", err)
		}
		pods, running := slices.Collect(m.Pods(state.PodFilter{State: state.Ready})),
			slices.Collect(m.Containers(state.ContainerFilter{State: state.Running}))
		if len(pods) != 1 || len(running) != 1 || running[0].ID != id {
			t.Errorf("%d pods, %d running containers", len(pods), len(running))
		}
		for name, op := range map[string]func(context.Context) error{
			"run": func(ctx context.Context) error { _, err := m.Run(ctx, podConfig("q")); return err },
			"create": func(ctx context.Context) error {
				_, err := m.Create(ctx, podID, containerConfig("run", "2"))
				return err
			},
			"stop":     func(ctx context.Context) error { return m.StopContainer(ctx, id, 0) },
			"stop pod": func(ctx context.Context) error { return m.Stop(ctx, podID) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := op(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		if p := b.proc(id); p.state != client.StateRunning || len(p.signals) > 0 {
			t.Errorf("container: %+v", p)
		}
		close(release)
		ok(t, m.recovery.Await(t.Context()))
		ok(t, m.Ready())
		ok(t, m.Stop(t.Context(), podID)) // joins the call above, as Run does
		must[string](t)(m.Run(t.Context(), podConfig("q")))
		if p := b.proc(id); p != nil && p.state != client.StateStopped {
			t.Errorf("container: %+v", p)
		}
		for p := range m.Pods(state.PodFilter{}) {
			ok(t, m.Remove(t.Context(), p.ID))
		}
		idle(t, m)
		b.nothingLeft()
		ok(t, m.Close())
	})
}

// Shims that do not answer are asked again.
func TestShimsAreAskedAgain(t *testing.T) {
	b := newBench(t)
	_, podID, id := b.lone()
	tries := make(chan struct{}, 16)
	b.fault("shim.List", failTimes(3, client.ErrUnavailable, tries))
	m, _ := b.manager()
	if len(tries) != 4 {
		t.Errorf("asked %d times", len(tries))
	}
	b.untouched(m, podID, id)
	b.agrees(m)
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// If the shim does not answer about one container, the others are recovered. That container is
// recovered when the shim answers.
func TestContainerRecoveredLater(t *testing.T) {
	b := newBench(t)
	_, podID, id := b.lone()
	b.exit(id, 7)
	tries := make(chan struct{}, 16)
	b.fault("shim.Status", failTimes(1, client.ErrUnavailable, tries))
	m, h := b.unstarted()
	h.events = make(chan client.Event) // no exit is reported
	m.Shim = fakeShim{h}
	ok(t, m.Start(t.Context()))
	if m.RecoveryErrors() != 1 {
		t.Errorf("%d errors", m.RecoveryErrors())
	}
	if c := ended(t, m, id); c.ExitCode != 7 {
		t.Errorf("container is %s, %d", c.State, c.ExitCode)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// A namespace that cannot be examined does not count as gone.
func TestNamespaceThatCannotBeLookedAt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(pin string) error
		state state.State
	}{
		{"gone", os.Remove, state.NotReady},
		{"unreadable", func(pin string) error { return errors.Join(os.Remove(pin), os.Symlink(pin, pin)) }, state.Ready}, // ELOOP
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m1, podID, _ := b.lone()
			ok(t, tc.spoil(m1.pods.Exact(podID).Get().Namespaces.Net))
			m, _ := b.manager()
			if p := must[state.Pod](t)(m.Pod(podID)); p.State != tc.state {
				t.Errorf("pod is %s", p.State)
			}
			ok(t, m.Remove(t.Context(), podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

// reconnect reports a new shim to the manager.
func (h *hands) reconnect() { h.events <- client.Event{Kind: client.EventReconnected} }

// Containers that a new shim does not know have ended; those that it knows keep running.
func TestContainersLostWithTheirShim(t *testing.T) {
	b := newBench(t)
	m, h := b.manager()
	cfg := podConfig("p")
	cfg.Namespaces.PID = podconfig.NamespacePod
	podID := must[string](t)(m.Run(t.Context(), cfg))
	var ids []string
	for _, name := range []string{"lost", "kept", "ended"} {
		c := containerConfig("run")
		c.Name, c.Security.Namespaces.PID = name, podconfig.NamespacePod
		id := must[string](t)(m.Create(t.Context(), podID, c))
		ok(t, m.StartContainer(t.Context(), id))
		ids = append(ids, id)
	}
	lost, kept, over := ids[0], ids[1], ids[2]
	b.mu.Lock()
	delete(b.procs, lost)
	delete(b.procs, podID)
	b.mu.Unlock()
	// The client reports its exit before the connection.
	b.exit(over, 9)
	h.reconnect()
	if c := ended(t, m, lost); c.ExitCode != 255 || c.Reason != "Unknown" {
		t.Errorf("lost container: %d, %q", c.ExitCode, c.Reason)
	}
	if c := ended(t, m, over); c.ExitCode != 9 || c.Reason != "Error" {
		t.Errorf("ended container: %d, %q", c.ExitCode, c.Reason)
	}
	if c := must[state.Container](t)(m.Container(kept)); c.State != state.Running {
		t.Errorf("kept container: %s", c.State)
	}
	select {
	case <-m.exits.Of(podID, func() bool { return m.pods.Exact(podID).Get().InitPid == 0 }):
	case <-time.After(patience):
		t.Error("the pod's init is missing and the pod does not know")
	}
	if p := must[state.Pod](t)(m.Pod(podID)); p.State != state.NotReady {
		t.Errorf("pod without its init: %s", p.State)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// A container that is being started is unknown to the shim for a moment, but not lost.
func TestStartWhileShimReconnects(t *testing.T) {
	b := newBench(t)
	m, h := b.manager()
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	other := containerConfig("run")
	other.Name = "other"
	oid := must[string](t)(m.Create(t.Context(), podID, other))
	ok(t, m.StartContainer(t.Context(), oid))
	id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
	entered, release := make(chan struct{}, 1), make(chan struct{})
	b.fault("shim.Create", hanging(entered, release))
	done := make(chan error, 1)
	go func() { done <- m.StartContainer(t.Context(), id) }()
	<-entered
	b.mu.Lock()
	delete(b.procs, oid)
	b.mu.Unlock()
	h.reconnect()
	ended(t, m, oid) // the comparison has handled all
	close(release)
	ok(t, <-done)
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Running {
		t.Errorf("container is %s", c.State)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// A start that is interrupted by the shim's death is repeated once, if the program has not run.
func TestStartOnceMore(t *testing.T) {
	for _, tc := range []struct {
		name    string
		call    string
		dies    int32
		left    func(b *bench, id string) // state found by the next shim, under the lock
		state   state.ContainerState
		code    int32
		creates int
		freed   bool // its end is noted, and the next shim has forgotten it
	}{
		{"while it was made", "shim.Create", 1, func(*bench, string) {}, state.Running, 0, 1, false},
		{"made, not let go", "shim.StartContainer", 1, func(*bench, string) {}, state.Running, 0, 2, false},
		{"made, rolled back", "shim.StartContainer", 1, func(b *bench, id string) { delete(b.procs, id) }, state.Running, 0, 2, false},
		{"let go", "shim.StartContainer", 1, func(b *bench, id string) { b.procs[id].state = client.StateRunning }, state.Running, 0, 1, false},
		{"let go, and ended", "shim.StartContainer", 1, func(b *bench, id string) {
			b.procs[id].state = client.StateRunning
			b.exitLocked(id, 4)
		}, state.Exited, 4, 1, false},
		{"let go, ended, and freed", "shim.StartContainer", 1, func(b *bench, id string) {
			b.procs[id].state = client.StateRunning
			b.exitLocked(id, 4)
		}, state.Exited, 4, 1, true},
		{"twice", "shim.StartContainer", 2, func(b *bench, id string) { delete(b.procs, id) }, state.Exited, 128, 2, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
			id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
			died := int32(0)
			b.fault(tc.call, func(context.Context) error {
				if died++; died > tc.dies {
					return nil
				}
				b.mu.Lock()
				tc.left(b, id)
				b.mu.Unlock()
				if tc.freed {
					ended(t, m, id)
					ok(t, m.exits.Forget(t.Context(), podID, id))
				}
				return client.ErrUnavailable
			})
			err := m.StartContainer(t.Context(), id)
			if failed := err != nil; failed != (tc.dies > 1) {
				t.Errorf("start: %v", err)
			}
			c := must[state.Container](t)(m.Container(id))
			if c.State != tc.state || c.ExitCode != tc.code || b.count("shim.Create") != tc.creates {
				t.Errorf("container is %s, %d (%s); made %d times", c.State, c.ExitCode, c.Message, b.count("shim.Create"))
			}
			ok(t, m.Remove(t.Context(), podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

// A daemon that dies before it repeats a start leaves a container that can be started.
func TestCrashBeforeStartOnceMore(t *testing.T) {
	b := newBench(t)
	m1, h1 := b.manager()
	crashed := b.crash(m1, h1, "pod.start.again")
	podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m1.Create(t.Context(), podID, containerConfig("run")))
	b.fault("shim.Create", failing(client.ErrUnavailable))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go m1.StartContainer(ctx, id)
	select {
	case <-crashed:
	case <-time.After(patience):
		t.Fatal("the point was not reached")
	}
	cancel()
	b.repair("shim.Create")
	m2, _ := b.manager()
	ok(t, m2.StartContainer(t.Context(), id))
	if c := must[state.Container](t)(m2.Container(id)); c.State != state.Running {
		t.Errorf("container is %s", c.State)
	}
	ok(t, m2.Remove(t.Context(), podID))
	idle(t, m2)
	b.nothingLeft()
}

// The deadline of a stop that outlives its daemon does not move when the clock is set.
func TestStopDeadlineWithClockSetBack(t *testing.T) {
	b := newBench(t)
	m1, h1 := b.manager()
	crashed := b.crash(m1, h1, "pod.stop.container.recorded")
	podID := must[string](t)(m1.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m1.Create(t.Context(), podID, containerConfig("stubborn")))
	ok(t, m1.StartContainer(t.Context(), id))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go m1.StopContainer(ctx, id, 100*time.Millisecond)
	<-crashed
	cancel()
	// The clock is a day behind the time at which the deadline was written.
	file := m1.dirs.Containers().File(id)
	var rec struct {
		Version int            `json:"version"`
		Value   map[string]any `json:"value"`
	}
	ok(t, json.Unmarshal(must[[]byte](t)(os.ReadFile(file)), &rec))
	rec.Value["stopAt"] = time.Now().Add(24 * time.Hour)
	ok(t, os.WriteFile(file, must[[]byte](t)(json.Marshal(rec)), 0o600))
	m2, _ := b.manager()
	if c := ended(t, m2, id); c.ExitCode != 137 {
		t.Errorf("exit code %d", c.ExitCode)
	}
	ok(t, m2.Remove(t.Context(), podID))
	idle(t, m2)
	b.nothingLeft()
}

// An object created after the clock was set back is newer in lists, even after a restart.
func TestOrderWithClockSetBack(t *testing.T) {
	b := newBench(t)
	m1, h1 := b.manager()
	first := must[string](t)(m1.Run(t.Context(), podConfig("1")))
	// The first object was made when the clock was a day ahead.
	ahead := time.Now().Add(24 * time.Hour).Round(0)
	ok(t, m1.pods.Exact(first).Update(func(r *state.PodRecord) { r.CreatedAt = ahead }))
	b.kill(h1)
	m2, _ := b.manager()
	second := must[string](t)(m2.Run(t.Context(), podConfig("2")))
	third := must[string](t)(m2.Run(t.Context(), podConfig("3")))
	var order []string
	for p := range m2.Pods(state.PodFilter{}) {
		order = append(order, p.ID)
	}
	if want := []string{third, second, first}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if p := must[state.Pod](t)(m2.Pod(third)); !p.CreatedAt.Equal(ahead.Add(2)) {
		t.Errorf("created at %v, want 2 ns after %v", p.CreatedAt, ahead)
	}
	for _, id := range order {
		ok(t, m2.Remove(t.Context(), id))
	}
	idle(t, m2)
	b.nothingLeft()
}
