package pod

import (
	"context"
	"errors"
	"net/netip"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Run makes a pod and returns its id when it is ready. On error nothing of it is left behind. A
// call with the identity of one under way joins it, and one that repeats the call that made a ready
// pod gets that pod; ErrExists if another pod has the identity. The work goes on when ctx ends, at
// most two minutes.
func (m *Manager) Run(ctx context.Context, c podconfig.Pod) (podID string, err error) {
	return m.podLives.Run(ctx, c)
}

// Stop kills all containers of the pod, disconnects it and lets its namespaces go. The
// record stays, NotReady. Stopping a stopped or unknown pod succeeds.
//
// When it returns nothing of the pod runs and its host ports are free. What is slow
// and seen by no one (links, addresses, namespaces) goes in the background; the record
// says so, and recovery goes on with it.
func (m *Manager) Stop(ctx context.Context, podID string) error {
	e, err := m.pods.Find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.recovery.Find(UnmanagedPod, podID); ok {
			return failure.During("stop pod", u.ID, m.recovery.Stop(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return m.podLives.Stop(ctx, e)
}

// Remove stops the pod if need be, removes its containers and forgets it. Removing an
// unknown pod succeeds. What is slow goes in the background, as with Stop.
func (m *Manager) Remove(ctx context.Context, podID string) error {
	e, err := m.pods.Find(podID)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.recovery.Find(UnmanagedPod, podID); ok {
			return failure.During("remove pod", u.ID, m.recovery.Remove(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return m.podLives.Remove(ctx, e)
}

// UpdatePodResources notes what the caller, who owns the pod's cgroup, has given the pod as
// a whole; nil leaves what is noted. The pod's containers are not touched. ErrPrecondition if
// the pod is not ready.
func (m *Manager) UpdatePodResources(ctx context.Context, podID string, overhead, resources *podconfig.Resources) error {
	return m.podLives.UpdateResources(ctx, podID, overhead, resources)
}

// SetPodCIDR puts other address ranges in force for pods to come.
func (m *Manager) SetPodCIDR(ctx context.Context, ranges []netip.Prefix) error {
	return failure.During("change address ranges of", "pods", m.Network.SetPodCIDR(ctx, ranges))
}
