package pod

import (
	"context"
	"net/netip"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// UpdatePodResources notes what the caller, who owns the pod's cgroup, has given the pod as
// a whole; nil leaves what is noted. The pod's containers are not touched. ErrPrecondition if
// the pod is not ready.
func (m *Manager) UpdatePodResources(ctx context.Context, podID string, overhead, resources *podconfig.Resources) error {
	e, err := m.pods.Find(podID)
	if err != nil {
		return errdefs.During("update pod", podID, err)
	}
	for _, r := range []*podconfig.Resources{overhead, resources} {
		if r == nil {
			continue
		}
		if err := r.Validate(); err != nil {
			return errdefs.During("update pod", e.ID, err)
		}
	}
	return errdefs.During("update pod", e.ID, m.life.Run(context.WithoutCancel(ctx), updateLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		if err := e.Get().MustBeReady(); err != nil {
			return err
		}
		if err := m.notify.UpdatePod(ctx, e.Get().Value(), overhead, resources); err != nil {
			return err
		}
		if err := e.Update(func(r *state.PodRecord) {
			if overhead != nil {
				r.Config.Overhead = overhead
			}
			if resources != nil {
				r.Config.Resources = resources
			}
		}); err != nil {
			return err
		}
		return m.notify.Pod(ctx, plugins.PodUpdated, e.Get().Value())
	}))
}

// SetPodCIDR puts other address ranges in force for pods to come.
func (m *Manager) SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error {
	return errdefs.During("change address ranges of", "pods", m.Network.SetPodCIDR(ctx, ranges))
}
