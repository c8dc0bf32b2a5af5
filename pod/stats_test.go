package pod

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/coracle-project/coracle/pod/container"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/stats"
)

// forgetting notes which containers' readings are dropped.
type forgetting struct {
	container.Readings
	ids []string
}

func (f *forgetting) ForgetContainer(id string) {
	f.ids = append(f.ids, id)
	f.Readings.ForgetContainer(id)
}

// What pods and containers use is read while they run, and dropped when they are removed.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a list waits for a second, of its clock
		b := newBench(t)
		m, _ := b.manager()
		dropped := &forgetting{Readings: m.containerLives.Readings}
		m.containerLives.Readings = dropped
		ctx := t.Context()
		podID := must[string](t)(m.Run(ctx, podConfig("p")))
		id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
		if got := m.ListStats(ctx, state.ContainerFilter{}); len(got) != 0 {
			t.Errorf("%d readings before anything runs", len(got))
		}
		ok(t, m.StartContainer(ctx, id))
		if s := must[stats.Container](t)(m.Stats(ctx, id)); s.CPU.Total != 7 {
			t.Errorf("container: %+v", s)
		}
		if got := m.ListStats(ctx, state.ContainerFilter{}); len(got) != 1 {
			t.Errorf("%d readings, want 1", len(got))
		}
		if s := must[stats.Pod](t)(m.PodStats(ctx, podID)); len(s.Containers) != 1 || len(s.Interfaces) != 1 {
			t.Errorf("pod: %+v", s)
		}
		ok(t, m.Stop(ctx, podID))
		if s := must[stats.Pod](t)(m.PodStats(ctx, podID)); len(s.Containers) != 0 || s.CPU.Total != 0 {
			t.Errorf("of a stopped pod: %+v", s)
		}
		if got := m.ListPodStats(ctx, stats.PodFilter{}); len(got) != 0 {
			t.Errorf("a stopped pod is listed: %+v", got)
		}
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		if !slices.Equal(dropped.ids, []string{id}) {
			t.Errorf("readings of %q were dropped, want those of %s", dropped.ids, id)
		}
	})
}

// A pod on the node's network has no interfaces of its own.
func TestStatsOnTheNodesNetwork(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	c := podConfig("p")
	c.Namespaces.Network = podconfig.NamespaceNode
	podID := must[string](t)(m.Run(t.Context(), c))
	if s := must[stats.Pod](t)(m.PodStats(t.Context(), podID)); len(s.Interfaces) != 0 {
		t.Errorf("got %+v", s)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
}
