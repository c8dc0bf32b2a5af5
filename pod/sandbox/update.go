package sandbox

import (
	"context"

	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// UpdateResources notes what the caller, who owns the pod's cgroup, has given the pod as
// a whole; nil leaves what is noted. The pod's containers are not touched. ErrPrecondition if
// the pod is not ready.
func (ps *Pods) UpdateResources(ctx context.Context, podID string, overhead, resources *podconfig.Resources) error {
	e, err := ps.Pods.Find(podID)
	if err != nil {
		return failure.During("update pod", podID, err)
	}
	for _, r := range []*podconfig.Resources{overhead, resources} {
		if r == nil {
			continue
		}
		if err := r.Validate(); err != nil {
			return failure.During("update pod", e.ID, err)
		}
	}
	return failure.During("update pod", e.ID, ps.Life.Run(context.WithoutCancel(ctx), updateLimit, func(ctx context.Context) error {
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		if err := e.Get().MustBeReady(); err != nil {
			return err
		}
		if err := ps.Notify.UpdatePod(ctx, e.Get().Value(), overhead, resources); err != nil {
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
		return ps.Notify.Pod(ctx, plugins.PodUpdated, e.Get().Value())
	}))
}
