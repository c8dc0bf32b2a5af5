package pod

import (
	"context"
	"errors"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// Create makes a container in a ready pod: its root is mounted and its spec written,
// but the shim knows nothing of it yet (StartContainer tells it), so a container that
// is never started costs no process. On error nothing of it is left behind. A call
// with the pod, name and attempt of one under way joins it; ErrExists if there is such
// a container, ErrNotFound if the pod or the image is not there, ErrPrecondition if the
// pod is not ready.
func (m *Manager) Create(ctx context.Context, podID string, c podconfig.Container) (id string, err error) {
	return m.containerLives.Create(ctx, podID, c)
}

// StartContainer runs a created container. ErrPrecondition if it has been started
// before or its pod is not ready. If its program cannot be run the error is returned and
// the container is left Exited, with reason StartError.
func (m *Manager) StartContainer(ctx context.Context, id string) error {
	return m.containerLives.Start(ctx, id)
}

// StopContainer sends the container's stop signal, waits up to grace for its end, and
// then kills it; grace 0 kills at once. A call while another is under way joins it,
// and shortens its grace if its own ends sooner. Stopping what does not run, or is not
// known, succeeds.
func (m *Manager) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	e, err := m.containers.Find(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.recovery.Find(UnmanagedContainer, id); ok {
			return failure.During("stop container", u.ID, m.recovery.Stop(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return failure.During("stop container", e.ID, m.containerLives.Stop(ctx, e, max(grace, 0)))
}

// RemoveContainer deletes a container, killing it if it runs. Removing an unknown
// container succeeds.
func (m *Manager) RemoveContainer(ctx context.Context, id string) error {
	e, err := m.containers.Find(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.recovery.Find(UnmanagedContainer, id); ok {
			return failure.During("remove container", u.ID, m.recovery.Remove(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return failure.During("remove container", e.ID, m.containerLives.Remove(ctx, e))
}

// UpdateResources changes the limits of a created or running container; zero fields stay
// as they are. The new limits are recorded, and are in force at once or from the start
// on. annotations are taken for the caller's sake and steer nothing. The score for the
// out-of-memory killer belongs to a process that runs already and is not changed.
func (m *Manager) UpdateResources(ctx context.Context, id string, r podconfig.Resources, annotations map[string]string) error {
	_ = annotations
	return m.containerLives.UpdateResources(ctx, id, r)
}

// UpdatePlugged changes limits that a plugin wants changed. They are those of the container that
// runs; its configuration stays what the caller has asked for.
func (m *Manager) UpdatePlugged(ctx context.Context, id string, r *specs.LinuxResources) error {
	return m.containerLives.UpdatePlugged(ctx, id, r)
}

// containersOfPod ends the containers of a pod, managed or not.
type containersOfPod struct{ *Manager }

func (m containersOfPod) StopAll(ctx context.Context, podID string) error {
	var tasks errgroup.Group
	unmanaged := m.recovery.In(podID) // first, as in RemoveAll
	for _, e := range state.ContainersOf(m.containers, podID) {
		// One that is being made runs nothing, and will not be started in this pod; but it may have the
		// pod's init started, which must not outlive the pod. What it waits for, a volume whose server is
		// gone, can take for ever.
		if r := e.Get(); r.Phase == state.ContainerMaking && !m.mayStartInit(r) {
			continue
		}
		tasks.Go(func() error { return failure.During("container", e.ID, m.containerLives.Stop(ctx, e, 0)) })
	}
	for _, u := range unmanaged {
		tasks.Go(func() error { return failure.During("container", u.ID, m.exits.End(ctx, podID, u.ID)) })
	}
	return tasks.Wait()
}

// mayStartInit says whether the making of a container may start its pod's init.
func (m containersOfPod) mayStartInit(c *state.ContainerRecord) bool {
	if c.Config.Security.Namespaces.PID == podconfig.NamespacePod {
		return true
	}
	p := m.pods.Exact(c.PodID)
	if p == nil {
		return false
	}
	handler, err := m.opts.Handlers.Of(&p.Get().Config)
	return err != nil || handler.Sandboxed()
}

func (m containersOfPod) RemoveAll(ctx context.Context, podID string) error {
	var tasks errgroup.Group
	unmanaged := m.recovery.In(podID) // first: one that is adopted meanwhile is in both lists, not in neither
	for _, e := range state.ContainersOf(m.containers, podID) {
		tasks.Go(func() error { return failure.During("container", e.ID, m.containerLives.Remove(ctx, e)) })
	}
	for _, u := range unmanaged {
		tasks.Go(func() error { return failure.During("container", u.ID, m.recovery.DropContainer(ctx, u)) })
	}
	return tasks.Wait()
}
