// Package plugins calls the node's plugins, if there are any, in the lives of pods and containers.
package plugins

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// Set is the plugins of a node. They are told what becomes of pods and containers, and may change
// what containers are made from. Package nri has those of the Node Resource Interface.
//
// An error keeps from happening what has not happened yet: a pod is not run or updated, a container
// not created, started or updated. What ends, ends.
type Set interface {
	// Hold keeps new plugins from being told what there is, until release is called: they
	// would miss the change that the other plugins are just being sent. It waits while a new plugin
	// waits or is being synchronized, so the caller must release it as soon as the other plugins
	// have been called and the change is recorded.
	Hold() (release func())
	// Tell is called with container nil for what happens to a pod.
	Tell(ctx context.Context, ev Event, p state.Pod, c *Container) error
	// Adjust may change the specification of a container that is being created.
	Adjust(ctx context.Context, p state.Pod, c Container) error
	// UpdatePod is called before what the caller has given a pod as a whole is noted; nil stays as
	// it was.
	UpdatePod(ctx context.Context, p state.Pod, overhead, resources *podconfig.Resources) error
	// AdjustUpdate may change limits that are to be set, each of which may be absent.
	AdjustUpdate(ctx context.Context, p state.Pod, c Container, r *specs.LinuxResources) error
}

// Event is what plugins are told.
type Event string

// The events. Those in the past tense come afterwards, and their errors are only logged.
const (
	PodRuns          Event = "run pod"
	PodUpdated       Event = "post-update pod"
	PodStopped       Event = "stop pod"
	PodRemoved       Event = "remove pod"
	ContainerCreated Event = "post-create container"
	ContainerStarts  Event = "start container"
	ContainerStarted Event = "post-start container"
	ContainerUpdated Event = "post-update container"
	ContainerStopped Event = "stop container"
	ContainerRemoved Event = "remove container"
)

// mayPrevent says whether an error keeps the event from happening.
func (ev Event) mayPrevent() bool { return ev == PodRuns || ev == ContainerStarts }

// Container is a container with what it is made from.
type Container struct {
	state.Container
	Spec *specs.Spec
}

// Notifier calls the plugins with pods and containers as they are in the tables.
type Notifier struct {
	Plugins    Set // none if nil
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Dirs       state.Layout
	Log        *slog.Logger
}

// Pod tells what happens to a pod.
func (n *Notifier) Pod(ctx context.Context, ev Event, p state.Pod) error {
	if n.Plugins == nil {
		return nil
	}
	return n.told(ev, p.ID, n.Plugins.Tell(ctx, ev, p, nil))
}

// Container tells what happens to a container.
func (n *Notifier) Container(ctx context.Context, ev Event, e *state.ContainerEntry) error {
	if n.Plugins == nil {
		return nil
	}
	p := n.Pods.Exact(e.Get().PodID)
	if p == nil {
		return nil // it is being removed
	}
	c, err := n.read(e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has been removed
	}
	if err == nil {
		err = n.Plugins.Tell(ctx, ev, p.Get().Value(), &c)
	}
	return n.told(ev, e.ID, err)
}

func (n *Notifier) told(ev Event, id string, err error) error {
	if err == nil || ev.mayPrevent() {
		return err
	}
	n.Log.Warn("plugin failed", "event", string(ev), "id", id, "err", err)
	return nil
}

// read reads what a container is made from.
func (n *Notifier) read(e *state.ContainerEntry) (Container, error) {
	spec, err := ocispec.Read(n.Dirs.Containers().Of(e.ID))
	return Container{Container: e.Get().Value(), Spec: spec}, err
}

// Adjust has the plugins change the specification of a container that is being created.
func (n *Notifier) Adjust(ctx context.Context, p *state.PodEntry, e *state.ContainerEntry, spec *specs.Spec) error {
	if n.Plugins == nil {
		return nil
	}
	return n.Plugins.Adjust(ctx, p.Get().Value(), Container{e.Get().Value(), spec})
}

// UpdatePod tells them of limits of a pod that are about to be noted.
func (n *Notifier) UpdatePod(ctx context.Context, p state.Pod, overhead, resources *podconfig.Resources) error {
	if n.Plugins == nil {
		return nil
	}
	return n.Plugins.UpdatePod(ctx, p, overhead, resources)
}

// AdjustUpdate has them change limits that are about to be set.
func (n *Notifier) AdjustUpdate(ctx context.Context, e *state.ContainerEntry, r *specs.LinuxResources) error {
	p := n.Pods.Exact(e.Get().PodID)
	if n.Plugins == nil || p == nil {
		return nil
	}
	c, err := n.read(e)
	if err != nil {
		return err
	}
	return n.Plugins.AdjustUpdate(ctx, p.Get().Value(), c, r)
}

// Hold is Set.Hold.
func (n *Notifier) Hold() (release func()) {
	if n.Plugins == nil {
		return func() {}
	}
	return n.Plugins.Hold()
}

// All are the containers that run or may run, for a plugin that has come.
func (n *Notifier) All() (all []Container) {
	for _, e := range n.Containers.Each((*state.ContainerRecord).Visible) {
		if c, err := n.read(e); err == nil { // it may be removed just now
			all = append(all, c)
		}
	}
	return all
}
