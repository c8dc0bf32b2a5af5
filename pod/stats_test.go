package pod

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/stats"
)

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a list waits for a second, of its clock
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		podID := must[string](t)(m.Run(ctx, podConfig("p")))
		var ids []string
		for i := range 3 {
			c := containerConfig("run")
			c.Attempt = uint32(i)
			ids = append(ids, must[string](t)(m.Create(ctx, podID, c)))
			if i > 0 {
				ok(t, m.StartContainer(ctx, ids[i]))
			}
		}
		s := must[stats.Container](t)(m.Stats(ctx, ids[1]))
		if s.CPU.Total != 7 || s.Memory.WorkingSet != 10 || s.DiskBytes != 4096 || s.DiskInodes != 2 {
			t.Errorf("got %+v", s)
		}
		if s := must[stats.Container](t)(m.Stats(ctx, ids[0])); s.CPU.Total != 0 || s.DiskBytes != 4096 || s.Usage.Time.IsZero() {
			t.Errorf("of one that was never started: %+v", s)
		}
		if got := m.ListStats(ctx, state.ContainerFilter{}); len(got) != 2 {
			t.Errorf("%d readings, want those of the 2 that run", len(got))
		}
		n := b.count("snapshots.Usage")
		m.ListStats(ctx, state.ContainerFilter{})
		if b.count("snapshots.Usage") != n {
			t.Error("a fresh reading of the disk was not used again")
		}
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		if m.readings.Known(ids[1]) {
			t.Error("readings of a removed container are kept")
		}
	})
}

// TestHungCgroupDelaysNobody: one that cannot be read is left out of a list.
func TestHungCgroupDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a list waits for a second, of its clock
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		podID := must[string](t)(m.Run(ctx, podConfig("p")))
		id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
		ok(t, m.StartContainer(ctx, id))
		entered, release := make(chan struct{}, 10), make(chan struct{})
		b.fault("meter.Cgroup", hanging(entered, release))
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		if got := m.ListStats(short, state.ContainerFilter{}); len(got) != 0 {
			t.Errorf("%d readings of a hung cgroup", len(got))
		}
		if got := m.ListPodStats(short, stats.PodFilter{}); len(got) != 0 {
			t.Errorf("%d readings of a hung pod", len(got))
		}
		close(release)
		b.repair("meter.Cgroup")
		ok(t, m.Remove(ctx, podID))
	})
}

func TestPodStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a list waits for a second, of its clock
		b := newBench(t)
		m, _ := b.manager()
		ctx := t.Context()
		podID := must[string](t)(m.Run(ctx, podConfig("p")))
		for i := range 2 {
			c := containerConfig("run")
			c.Attempt = uint32(i)
			ok(t, m.StartContainer(ctx, must[string](t)(m.Create(ctx, podID, c))))
		}
		s := must[stats.Pod](t)(m.PodStats(ctx, podID))
		if len(s.Containers) != 2 || s.CPU.Total != 14 || s.Memory.WorkingSet != 20 || s.Tasks != 4 {
			t.Errorf("sum of containers: %+v", s)
		}
		if len(s.Interfaces) != 1 || s.Interfaces[0].Name != "eth0" || s.NetworkTime.IsZero() {
			t.Errorf("network: %+v", s.Interfaces)
		}
		if got := m.ListPodStats(ctx, stats.PodFilter{Labels: map[string]string{"no": "such"}}); len(got) != 0 {
			t.Errorf("%d pods have a label that none has", len(got))
		}
		ok(t, m.Stop(ctx, podID))
		if s := must[stats.Pod](t)(m.PodStats(ctx, podID)); len(s.Containers) != 0 || s.CPU.Total != 0 {
			t.Errorf("of a stopped pod: %+v", s)
		}
		if got := m.ListPodStats(ctx, stats.PodFilter{}); len(got) != 0 {
			t.Errorf("a stopped pod is listed: %+v", got)
		}
		if _, err := m.PodStats(ctx, "no-such"); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("unknown pod: %v", err)
		}
	})
}

// TestPodStatsOfTheCallersCgroup: what ended containers used counts too.
func TestPodStatsOfTheCallersCgroup(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	c := podConfig("p")
	c.CgroupParent = "/kubepods/pod1"
	c.Namespaces.Network = podconfig.NamespaceNode
	b.cgroups["/kubepods/pod1"] = cgstat.Usage{CPU: cgstat.CPU{Total: 99}}
	podID := must[string](t)(m.Run(ctx, c))
	s := must[stats.Pod](t)(m.PodStats(ctx, podID))
	if s.CPU.Total != 99 || len(s.Interfaces) != 0 {
		t.Errorf("got %+v", s)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
}

func TestUpdatePodResources(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	ok(t, m.UpdatePodResources(ctx, podID, &podconfig.Resources{MemoryLimit: 5}, nil))
	ok(t, m.UpdatePodResources(ctx, podID, nil, &podconfig.Resources{CPUShares: 6}))
	p := must[state.Pod](t)(m.Pod(podID))
	if p.Config.Overhead.MemoryLimit != 5 || p.Config.Resources.CPUShares != 6 {
		t.Errorf("%+v, %+v", p.Config.Overhead, p.Config.Resources)
	}
	if err := m.UpdatePodResources(ctx, podID, &podconfig.Resources{CPUPeriod: -1}, nil); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("bad overhead: %v", err)
	}
	if err := m.UpdatePodResources(ctx, "no-such", nil, nil); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("unknown pod: %v", err)
	}
	ok(t, m.Stop(ctx, podID))
	if err := m.UpdatePodResources(ctx, podID, nil, nil); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("stopped pod: %v", err)
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	ok(t, m.SetPodCIDR(ctx, ranges))
	if !slices.Equal(b.ranges, ranges) {
		t.Errorf("ranges %v", b.ranges)
	}
}
