package pod

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

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
