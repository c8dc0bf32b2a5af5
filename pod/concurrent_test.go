package pod

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// Calls for one object while the first is under way join it; all get its result.
func TestCallsJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		// together makes five calls of op, the first of which hangs in call until all have begun.
		together := func(call string, op func() (string, error)) string {
			t.Helper()
			entered, release := make(chan struct{}, 10), make(chan struct{})
			b.fault(call, hanging(entered, release))
			ids := make(chan string, 5)
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					id, err := op()
					if err != nil {
						t.Errorf("%s: %v", call, err)
					}
					ids <- id
				})
			}
			<-entered
			synctest.Wait()
			if len(ids) > 0 && call != "snapshots.Remove" { // what is being removed is gone for later calls
				t.Errorf("%s: %d calls did not wait for the first", call, len(ids))
			}
			close(release)
			wg.Wait()
			close(ids)
			b.repair(call)
			first := <-ids
			for id := range ids {
				if id != first {
					t.Errorf("%s: two ids", call)
				}
			}
			return first
		}
		podID := together("network.Setup", func() (string, error) { return m.Run(ctx, podConfig("p")) })
		id := together("snapshots.Prepare", func() (string, error) { return m.Create(ctx, podID, containerConfig("run")) })
		together("shim.Create", func() (string, error) { return "", m.StartContainer(ctx, id) })
		together("shim.Kill", func() (string, error) { return "", m.StopContainer(ctx, id, 0) })
		together("snapshots.Remove", func() (string, error) { return "", m.RemoveContainer(ctx, id) })
		for call, n := range map[string]int{
			"network.Setup": 1, "snapshots.Prepare": 1, "shim.Create": 1, "shim.Kill": 1, "snapshots.Remove": 1,
		} {
			if got := b.count(call); got != n {
				t.Errorf("%s was called %d times, want %d", call, got, n)
			}
		}
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		b.nothingLeft()
	})
}

// A call whose answer was lost, even to a restart, is made again and gets the first one's result.
func TestRepeatedCallGetsTheFirstResult(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	again := func(m *Manager) {
		t.Helper()
		if got, err := m.Run(ctx, podConfig("p")); err != nil || got != podID {
			t.Errorf("Run again: %q, %v; want %q", got, err, podID)
		}
		if got, err := m.Create(ctx, podID, containerConfig("run")); err != nil || got != id {
			t.Errorf("Create again: %q, %v; want %q", got, err, id)
		}
	}
	again(m)
	ok(t, m.Close())
	m, _ = b.manager()
	again(m)
	ok(t, m.StartContainer(ctx, id))
	if _, err := m.Create(ctx, podID, containerConfig("run")); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("Create of a started container: %v", err)
	}
	ok(t, m.Stop(ctx, podID))
	if _, err := m.Run(ctx, podConfig("p")); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("Run of a stopped pod: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

// An identity is one pod's until that is removed.
func TestIdentityIsTaken(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	other := podConfig("p")
	other.Hostname = "other"
	if _, err := m.Run(ctx, other); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("second pod: %v", err)
	}
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	different := containerConfig("run")
	different.WorkingDir = "/tmp"
	if _, err := m.Create(ctx, podID, different); !errors.Is(err, errdefs.ErrExists) {
		t.Errorf("second container: %v", err)
	}
	ok(t, m.RemoveContainer(ctx, id))
	must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	next := podConfig("p")
	next.Attempt++
	nextID := must[string](t)(m.Run(ctx, next))
	ok(t, m.Remove(ctx, podID))
	podID = must[string](t)(m.Run(ctx, podConfig("p")))
	ok(t, m.Remove(ctx, podID))
	ok(t, m.Remove(ctx, nextID))
	idle(t, m)
	b.nothingLeft()
}

// Reading never waits, whatever hangs; the caller of what hangs can go away, and the
// work goes on without it.
func TestReadingNeverWaits(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
	entered, release := make(chan struct{}, 10), make(chan struct{})
	b.fault("shim.Create", hanging(entered, release))

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- m.StartContainer(ctx, id) }()
	<-entered
	for range 1000 {
		if c := must[state.Container](t)(m.Container(id)); c.State != state.Created {
			t.Fatalf("container is %s", c.State)
		}
		if len(slices.Collect(m.Containers(state.ContainerFilter{PodID: podID[:10]}))) != 1 ||
			len(slices.Collect(m.Pods(state.PodFilter{State: state.Ready}))) != 1 {
			t.Fatal("lists are not whole")
		}
	}
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatalf("start whose caller went: %v", err)
	}
	close(release)
	// A stop waits for its turn, so when it has returned the start had ended first.
	ok(t, m.StopContainer(t.Context(), id, time.Minute))
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 143 {
		t.Errorf("container: %s, code %d", c.State, c.ExitCode)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// Stopping a pod and creating or starting in it cross in any order without leaving a
// container running.
func TestStopCrossesStart(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	for i := range 30 {
		cfg := podConfig("p")
		cfg.Attempt = uint32(i)
		podID := must[string](t)(m.Run(t.Context(), cfg))
		id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.StartContainer(t.Context(), id) })
		wg.Go(func() {
			c := containerConfig("run")
			c.Name = "other"
			if other, err := m.Create(t.Context(), podID, c); err == nil {
				_ = m.StartContainer(t.Context(), other)
			}
		})
		wg.Go(func() { ok(t, m.Stop(t.Context(), podID)) })
		wg.Wait()
		if running := slices.Collect(m.Containers(state.ContainerFilter{State: state.Running})); len(running) > 0 {
			t.Fatalf("round %d: %d containers run in a stopped pod", i, len(running))
		}
		ok(t, m.Remove(t.Context(), podID))
	}
	idle(t, m)
	b.nothingLeft()
}

func TestGrace(t *testing.T) {
	for _, tc := range []struct {
		name string
		stop func(t *testing.T, m *Manager, id string)
		want time.Duration
	}{
		{"whole grace", func(t *testing.T, m *Manager, id string) {
			ok(t, m.StopContainer(t.Context(), id, 30*time.Second))
		}, 30 * time.Second},
		{"none", func(t *testing.T, m *Manager, id string) {
			ok(t, m.StopContainer(t.Context(), id, 0))
		}, 0},
		{"shortened by a later call", func(t *testing.T, m *Manager, id string) {
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, m.StopContainer(t.Context(), id, time.Hour)) })
			time.Sleep(5 * time.Second) // the bubble's clock
			ok(t, m.StopContainer(t.Context(), id, 10*time.Second))
			wg.Wait()
		}, 15 * time.Second},
		{"not lengthened by a later call", func(t *testing.T, m *Manager, id string) {
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, m.StopContainer(t.Context(), id, 10*time.Second)) })
			time.Sleep(5 * time.Second)
			ok(t, m.StopContainer(t.Context(), id, time.Hour))
			wg.Wait()
		}, 10 * time.Second},
		{"cut off by removal", func(t *testing.T, m *Manager, id string) {
			var wg sync.WaitGroup
			wg.Go(func() { ok(t, m.StopContainer(t.Context(), id, time.Hour)) })
			time.Sleep(5 * time.Second)
			ok(t, m.RemoveContainer(t.Context(), id))
			wg.Wait()
		}, 5 * time.Second},
		{"caller goes first", func(t *testing.T, m *Manager, id string) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if err := m.StopContainer(ctx, id, 20*time.Second); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			e := m.containers.Exact(id)
			<-m.exits.Of(id, func() bool { return !e.Get().Running() })
		}, 20 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				m, _ := b.manager()
				podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
				id := must[string](t)(m.Create(t.Context(), podID, containerConfig("stubborn")))
				ok(t, m.StartContainer(t.Context(), id))
				begin := time.Now()
				tc.stop(t, m, id)
				if took := time.Since(begin); took != tc.want {
					t.Errorf("took %v, want %v", took, tc.want)
				}
				ok(t, m.Remove(t.Context(), podID))
				idle(t, m)
				b.nothingLeft()
			})
		})
	}
}

// Host ports are free when Stop returns; what no one sees is torn down behind its back.
func TestWhatStopWaitsFor(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ports []podconfig.Port
		waits bool
	}{
		{"no host port", []podconfig.Port{{ContainerPort: 80}}, false},
		{"host port", []podconfig.Port{{ContainerPort: 80, HostPort: 8080}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				m, _ := b.manager()
				cfg := podConfig("p")
				cfg.Ports = tc.ports
				podID := must[string](t)(m.Run(t.Context(), cfg))
				entered, release := make(chan struct{}, 10), make(chan struct{})
				b.fault("network.Teardown", hanging(entered, release))
				stopped := make(chan error, 1)
				go func() { stopped <- m.Stop(t.Context(), podID) }()
				<-entered
				synctest.Wait()
				if tc.waits {
					select {
					case err := <-stopped:
						t.Errorf("Stop returned with the host port taken: %v", err)
					default:
					}
					close(release)
					ok(t, <-stopped)
				} else {
					ok(t, <-stopped)
					ok(t, m.Remove(t.Context(), podID)) // neither does Remove wait
					close(release)
				}
				ok(t, m.Remove(t.Context(), podID))
				idle(t, m)
				b.nothingLeft()
			})
		})
	}
}

// A daemon that is told to end during a start leaves the container as kill -9 would:
// running if it runs, else to be started again.
func TestClosedDuringStart(t *testing.T) {
	for call, want := range map[string]state.ContainerState{
		"shim.Create": state.Created, "shim.StartContainer": state.Created,
		"": state.Running,
	} {
		b := newBench(t)
		m, _ := b.manager()
		podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
		id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
		entered := make(chan struct{}, 1)
		if call != "" {
			b.fault(call, hanging(entered, nil))
		} else {
			m.faultAt = func(ctx context.Context, point fault.Point) error {
				if point != "pod.start.started" {
					return nil
				}
				return hanging(entered, nil)(ctx)
			}
		}
		started := make(chan error, 1)
		go func() { started <- m.StartContainer(t.Context(), id) }()
		<-entered
		ok(t, m.Close())
		if err := <-started; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: start: %v", call, err)
		}
		b.repair(call)
		m2, _ := b.manager()
		if c := must[state.Container](t)(m2.Container(id)); c.State != want {
			t.Errorf("%s: the container is %s (%s), want %s", call, c.State, c.Reason, want)
		}
		if want == state.Created {
			ok(t, m2.StartContainer(t.Context(), id))
		}
		ok(t, m2.Remove(t.Context(), podID))
		idle(t, m2)
		b.nothingLeft()
	}
}

// What the shim has made of a start that no one waits for any more does not keep the
// container from being started.
func TestStartAfterAStrayCreate(t *testing.T) {
	b := newBench(t)
	m, h := b.manager()
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
	_, err := fakeShim{h}.create(t.Context(), client.LaunchRequest{PodID: podID, ID: id, Bundle: m.dirs.Containers().Of(id)})
	ok(t, err)
	ok(t, m.StartContainer(t.Context(), id))
	if c := must[state.Container](t)(m.Container(id)); c.State != state.Running || c.Pid != b.proc(id).pid {
		t.Errorf("the container is %s with pid %d, want running with %d", c.State, c.Pid, b.proc(id).pid)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// A closed manager refuses work instead of beginning what no one would end.
func TestClosed(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	ok(t, m.Close())
	if _, err := m.Run(t.Context(), podConfig("q")); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("Run: %v", err)
	}
	if err := m.Stop(t.Context(), podID); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("Stop: %v", err)
	}
	if len(slices.Collect(m.Pods(state.PodFilter{}))) != 1 {
		t.Error("the pod cannot be read any more")
	}
	m2, _ := b.manager()
	ok(t, m2.Remove(t.Context(), podID))
	idle(t, m2)
	b.nothingLeft()
}
