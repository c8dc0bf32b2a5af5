package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// Plugins are told what becomes of pods and containers, and may change what containers are made
// from. Package nri has those of the Node Resource Interface.
//
// An error keeps from happening what has not happened yet: a pod is not run or updated, a container
// not created, started or updated. What ends, ends.
type Plugins interface {
	// Hold keeps new plugins from being told what there is, until release is called: they
	// would miss the change that the other plugins are just being sent. It waits while a new plugin
	// waits or is being synchronized, so the caller must release it as soon as the other plugins
	// have been called and the change is recorded.
	Hold() (release func())
	// Tell is called with container nil for what happens to a pod.
	Tell(ctx context.Context, ev PluginEvent, p state.Pod, c *PluggedContainer) error
	// Adjust may change the specification of a container that is being created.
	Adjust(ctx context.Context, p state.Pod, c PluggedContainer) error
	// UpdatePod is called before what the caller has given a pod as a whole is noted; nil stays as
	// it was.
	UpdatePod(ctx context.Context, p state.Pod, overhead, resources *podconfig.Resources) error
	// AdjustUpdate may change limits that are to be set, each of which may be absent.
	AdjustUpdate(ctx context.Context, p state.Pod, c PluggedContainer, r *specs.LinuxResources) error
}

// PluginEvent is what Plugins are told.
type PluginEvent string

// The events. Those in the past tense come afterwards, and their errors are only logged.
const (
	PodRuns          PluginEvent = "run pod"
	PodUpdated       PluginEvent = "post-update pod"
	PodStopped       PluginEvent = "stop pod"
	PodRemoved       PluginEvent = "remove pod"
	ContainerCreated PluginEvent = "post-create container"
	ContainerStarts  PluginEvent = "start container"
	ContainerStarted PluginEvent = "post-start container"
	ContainerUpdated PluginEvent = "post-update container"
	ContainerStopped PluginEvent = "stop container"
	ContainerRemoved PluginEvent = "remove container"
)

// mayPrevent says whether an error keeps the event from happening.
func (ev PluginEvent) mayPrevent() bool { return ev == PodRuns || ev == ContainerStarts }

// PluggedContainer is a container with what it is made from.
type PluggedContainer struct {
	state.Container
	Spec *specs.Spec
}

// tell tells the plugins, if there are any, what happens to a pod.
func (m *Manager) tell(ctx context.Context, ev PluginEvent, p state.Pod) error {
	if m.Plugins == nil {
		return nil
	}
	return m.told(ev, p.ID, m.Plugins.Tell(ctx, ev, p, nil))
}

// tellContainer tells them what happens to a container.
func (m *Manager) tellContainer(ctx context.Context, ev PluginEvent, e *state.ContainerEntry) error {
	if m.Plugins == nil {
		return nil
	}
	p := m.pods.Exact(e.Get().PodID)
	if p == nil {
		return nil // it is being removed
	}
	c, err := m.plugged(e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has been removed
	}
	if err == nil {
		err = m.Plugins.Tell(ctx, ev, p.Get().Value(), &c)
	}
	return m.told(ev, e.ID, err)
}

func (m *Manager) told(ev PluginEvent, id string, err error) error {
	if err == nil || ev.mayPrevent() {
		return err
	}
	m.log.Warn("plugin failed", "event", string(ev), "id", id, "err", err)
	return nil
}

// plugged reads what a container is made from.
func (m *Manager) plugged(e *state.ContainerEntry) (PluggedContainer, error) {
	c := PluggedContainer{Container: e.Get().Value(), Spec: &specs.Spec{}}
	b, err := os.ReadFile(filepath.Join(m.dirs.Containers().Of(e.ID), ocispec.FileName))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, c.Spec); err != nil {
		return c, fmt.Errorf("bundle: %w", err)
	}
	return c, nil
}

// adjust has the plugins change the specification of a container that is being created.
func (m *Manager) adjust(ctx context.Context, p *state.PodEntry, e *state.ContainerEntry, spec *specs.Spec) error {
	if m.Plugins == nil {
		return nil
	}
	return m.Plugins.Adjust(ctx, p.Get().Value(), PluggedContainer{e.Get().Value(), spec})
}

// updatePod tells them of limits of a pod that are about to be noted.
func (m *Manager) updatePod(ctx context.Context, p state.Pod, overhead, resources *podconfig.Resources) error {
	if m.Plugins == nil {
		return nil
	}
	return m.Plugins.UpdatePod(ctx, p, overhead, resources)
}

// adjustUpdate has them change limits that are about to be set.
func (m *Manager) adjustUpdate(ctx context.Context, e *state.ContainerEntry, r *specs.LinuxResources) error {
	p := m.pods.Exact(e.Get().PodID)
	if m.Plugins == nil || p == nil {
		return nil
	}
	c, err := m.plugged(e)
	if err != nil {
		return err
	}
	return m.Plugins.AdjustUpdate(ctx, p.Get().Value(), c, r)
}

// holdPlugins is Plugins.Hold.
func (m *Manager) holdPlugins() (release func()) {
	if m.Plugins == nil {
		return func() {}
	}
	return m.Plugins.Hold()
}

// Plugged is all that runs or may run, for a plugin that has come.
func (m *Manager) Plugged() ([]state.Pod, []PluggedContainer) {
	var containers []PluggedContainer
	for _, e := range m.containers.Each((*state.ContainerRecord).Visible) {
		if c, err := m.plugged(e); err == nil { // it may be removed just now
			containers = append(containers, c)
		}
	}
	return slices.Collect(m.Pods(state.PodFilter{})), containers
}

// UpdatePlugged changes limits that a plugin wants changed. They are those of the container that
// runs; its configuration stays what the caller has asked for.
func (m *Manager) UpdatePlugged(ctx context.Context, id string, r *specs.LinuxResources) error {
	e, err := m.containers.Find(id)
	if err != nil {
		return errdefs.During("update container", id, err)
	}
	rec := e.Get()
	if rec.Phase != state.ContainerRunning {
		return errdefs.During("update container", e.ID, errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, not running", rec.Phase))
	}
	// Plugins set no limit, and whatever is to be made waits while a new one is told what there is.
	return errdefs.During("update container", e.ID, m.life.Run(ctx, updateLimit, func(ctx context.Context) error {
		return m.Shim.Update(ctx, rec.PodID, e.ID, r)
	}))
}

// InjectCDI gives a specification the devices that a plugin wants in it.
func (m *Manager) InjectCDI(spec *specs.Spec, devices []string) error {
	return m.injectCDI(spec, devices)
}
