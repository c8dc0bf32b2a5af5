package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
)

// updater makes pods whose limits are noted, if the plugins, which may be nil, let it.
func updater(t *testing.T, p plugins.Set) (*Pods, *podtest.Node) {
	n := podtest.NewNode(t)
	notify := &plugins.Notifier{Plugins: p, Pods: n.Pods, Containers: n.Containers, Dirs: n.Dirs, Log: n.Log}
	return New(Config{Pods: n.Pods, Dirs: n.Dirs, Life: n.Life, Log: n.Log, Notify: notify}), n
}

func TestUpdatePodResources(t *testing.T) {
	ps, n := updater(t, nil)
	ctx, e := t.Context(), n.Pod()
	podtest.OK(t, ps.UpdateResources(ctx, e.ID, &podconfig.Resources{MemoryLimit: 5}, nil))
	podtest.OK(t, ps.UpdateResources(ctx, e.ID[:12], nil, &podconfig.Resources{CPUShares: 6}))
	c, saved := e.Get().Config, podtest.Must[state.PodRecord](t)(loaded(n, e.ID)).Config
	for what, c := range map[string]podconfig.Pod{"noted": c, "recorded": saved} {
		if c.Overhead == nil || c.Overhead.MemoryLimit != 5 || c.Resources == nil || c.Resources.CPUShares != 6 {
			t.Errorf("%s: %+v, %+v", what, c.Overhead, c.Resources)
		}
	}
	if err := ps.UpdateResources(ctx, e.ID, &podconfig.Resources{CPUPeriod: -1}, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("bad overhead: %v", err)
	}
	if err := ps.UpdateResources(ctx, "no-such", nil, nil); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("unknown pod: %v", err)
	}
	stopped := n.Pod(func(r *state.PodRecord) { r.Phase = state.PodStopped })
	if err := ps.UpdateResources(ctx, stopped.ID, nil, nil); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("stopped pod: %v", err)
	}
}

// loaded is a pod's record on disk.
func loaded(n *podtest.Node, id string) (state.PodRecord, error) {
	r, _, err := n.Dirs.Pods().Load(id)
	return r, err
}

// refusing is a plugin that wants no updates of pods.
type refusing struct {
	plugins.Set
	err error

	mu   sync.Mutex
	told []plugins.Event
}

func (p *refusing) Tell(_ context.Context, ev plugins.Event, _ state.Pod, _ *plugins.Container) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, ev)
	return nil
}

func (p *refusing) wasTold(ev plugins.Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.told, ev)
}

func (p *refusing) UpdatePod(context.Context, state.Pod, *podconfig.Resources, *podconfig.Resources) error {
	return p.err
}

// TestPluginsRefuseUpdateOfPod: then nothing is noted, and no one is told that it was.
func TestPluginsRefuseUpdateOfPod(t *testing.T) {
	p := &refusing{err: errors.New("no")}
	ps, n := updater(t, p)
	ctx, e := t.Context(), n.Pod()
	if err := ps.UpdateResources(ctx, e.ID, nil, &podconfig.Resources{MemoryLimit: 5}); !errors.Is(err, p.err) {
		t.Errorf("update: %v", err)
	}
	if got := e.Get().Config.Resources; got != nil || p.wasTold(plugins.PodUpdated) {
		t.Errorf("noted %v, told %t", got, p.wasTold(plugins.PodUpdated))
	}
	p.err = nil
	podtest.OK(t, ps.UpdateResources(ctx, e.ID, nil, &podconfig.Resources{MemoryLimit: 5}))
	if got := e.Get().Config.Resources; got == nil || got.MemoryLimit != 5 || !p.wasTold(plugins.PodUpdated) {
		t.Errorf("noted %v, told %t", got, p.wasTold(plugins.PodUpdated))
	}
}
