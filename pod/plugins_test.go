package pod

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// TestPluginsUpdateHasALimit: plugins give none, and others wait for them.
func TestPluginsUpdateHasALimit(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	ok(t, m.StartContainer(ctx, id))
	b.fault("shim.Update", func(ctx context.Context) error {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("the shim is called without a limit")
		}
		return nil
	})
	ok(t, m.UpdatePlugged(ctx, id, &specs.LinuxResources{}))
	if n := b.count("shim.Update"); n != 1 {
		t.Errorf("the shim was called %d times", n)
	}
	ok(t, m.Stop(ctx, podID))
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

// holding is a plugin that holds as package nri does: a new plugin takes the lock for writing, and
// every creation after that waits behind it.
type holding struct {
	plugins.Set
	t    *testing.T
	sync sync.RWMutex

	mu   sync.Mutex
	told []plugins.Event
}

func (p *holding) Hold() func() {
	p.sync.RLock()
	return p.sync.RUnlock
}

func (p *holding) Tell(_ context.Context, ev plugins.Event, _ state.Pod, _ *plugins.Container) error {
	if ev == plugins.PodRuns || ev == plugins.ContainerCreated {
		p.held(string(ev))
	}
	return nil
}

func (p *holding) Adjust(context.Context, state.Pod, plugins.Container) error {
	p.held("adjust")
	return nil
}

// held fails the test if a new plugin could be synchronized in the middle of a call.
func (p *holding) held(call string) {
	if p.sync.TryLock() {
		p.sync.Unlock()
		p.t.Errorf("%s: nothing is held", call)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, plugins.Event(call))
}

// arrive simulates a new plugin: it waits until nothing is held.
func (p *holding) arrive(ctx context.Context) error {
	in := make(chan struct{})
	go func() {
		p.sync.Lock()
		close(in)
		p.sync.Unlock()
	}()
	select {
	case <-in:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TestPluginsDoNotWaitForMounts: regression: while one container waited for its volume, or a pod
// for its network, a new plugin waited for that, and all other creations waited for the plugin.
func TestPluginsDoNotWaitForMounts(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	held := &holding{t: t}
	m.notify.Plugins = held
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))

	// hang makes the first call for which that returns true wait until release.
	hang := func(call string, which func() bool) (waits chan struct{}, release func()) {
		waits, end := make(chan struct{}), make(chan struct{})
		var once sync.Once
		b.fault(call, func(ctx context.Context) error {
			if !which() {
				return nil
			}
			once.Do(func() { close(waits) })
			select {
			case <-end:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		return waits, sync.OnceFunc(func() { close(end) })
	}
	others := func(what, name string) {
		t.Helper()
		if err := held.arrive(ctx); err != nil {
			t.Fatalf("%s: a plugin that comes: %v", what, err)
		}
		other := containerConfig("run")
		other.Name = name
		must[string](t)(m.Create(ctx, podID, other))
	}

	var prepared atomic.Int32 // the root is the first, the volume the second
	waits, release := hang("snapshots.Prepare", func() bool { return prepared.Add(1) == 2 })
	defer release()
	slow := containerConfig("run")
	slow.Name, slow.Mounts = "slow", []podconfig.Mount{{ContainerPath: "/volume", Image: "busybox"}}
	made := make(chan error, 1)
	go func() {
		_, err := m.Create(ctx, podID, slow)
		made <- err
	}()
	<-waits
	others("while a volume is mounted", "other")
	release()
	ok(t, <-made)

	waits, release = hang("network.Setup", func() bool { return true })
	defer release()
	go func() {
		_, err := m.Run(ctx, podConfig("q"))
		made <- err
	}()
	<-waits
	others("while a pod is connected", "another")
	release()
	ok(t, <-made)
	// Two runs, three creations.
	if n := len(held.told); n != 2+3*2 {
		t.Errorf("told %d times: %v", n, held.told)
	}
}
