package pod

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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
	ok(t, m.Stop(ctx, podID))
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

// refusing is a plugin that wants no updates of pods.
type refusing struct {
	Plugins
	err error

	mu   sync.Mutex
	told []PluginEvent
}

func (p *refusing) Hold() func() { return func() {} }

func (p *refusing) Tell(_ context.Context, ev PluginEvent, _ Pod, _ *PluggedContainer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, ev)
	return nil
}

func (p *refusing) wasTold(ev PluginEvent) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.told, ev)
}

func (p *refusing) UpdatePod(context.Context, Pod, *Resources, *Resources) error { return p.err }

// TestPluginsRefuseUpdateOfPod: then nothing is noted, and nobody is told that it was.
func TestPluginsRefuseUpdateOfPod(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	p := &refusing{err: errors.New("no")}
	m.Plugins = p
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	if err := m.UpdatePodResources(ctx, podID, nil, &Resources{MemoryLimit: 5}); !errors.Is(err, p.err) {
		t.Errorf("update: %v", err)
	}
	if got := must[Pod](t)(m.Pod(podID)).Config.Resources; got != nil || p.wasTold(PodUpdated) {
		t.Errorf("noted %v, told %t", got, p.wasTold(PodUpdated))
	}
	p.err = nil
	ok(t, m.UpdatePodResources(ctx, podID, nil, &Resources{MemoryLimit: 5}))
	if got := must[Pod](t)(m.Pod(podID)).Config.Resources; got == nil || got.MemoryLimit != 5 || !p.wasTold(PodUpdated) {
		t.Errorf("noted %v, told %t", got, p.wasTold(PodUpdated))
	}
	ok(t, m.Stop(ctx, podID))
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}
