// Package nri lets plugins of the Node Resource Interface (github.com/containerd/nri) look at, and
// change, what pod/ makes: it is plugins.Set by way of NRI's own adaptation library.
//
//	n := nri.New(nri.Config{Socket: "/var/run/nri/nri.sock", …})
//	pods := pod.New(…, pod.Deps{Plugins: n, …})
//	_ = n.Start(pods)   // starts installed plugins, listens for others; tells them what there is
//	_ = n.Close()
//
// A plugin that does not answer in time (2 s) is dropped by the library, and what it was asked
// about goes on without it. A plugin that refuses a creation, a run, a start or an update keeps it
// from happening. What plugins want changed of other containers is done at once; a container that
// cannot be changed is logged.
package nri

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// runtimeName is the name of the runtime that plugins are told.
const runtimeName = "coracle"

// Config is what Plugins need. Paths are absolute.
type Config struct {
	// Socket is where plugins connect.
	Socket string
	// PluginDir has plugins to be started, PluginConfigDir their configuration.
	PluginDir, PluginConfigDir string
	// Version is ours.
	Version string
	Log     *slog.Logger
}

// Pods is what plugins may ask for and change; pod.Manager implements it.
type Pods interface {
	Plugged() ([]pod.Pod, []plugins.Container)
	UpdatePlugged(ctx context.Context, id string, r *specs.LinuxResources) error
	InjectCDI(spec *specs.Spec, devices []string) error
}

// Plugins implements plugins.Set.
type Plugins struct {
	log   *slog.Logger
	pods  Pods
	nri   *adaptation.Adaptation
	ended context.CancelFunc
	ctx   context.Context // of updates that no one has asked for
}

var _ plugins.Set = (*Plugins)(nil)

// New makes Plugins. It does no I/O; Start does.
func New(cfg Config) (*Plugins, error) {
	p := &Plugins{log: cfg.Log}
	p.ctx, p.ended = context.WithCancel(context.Background())
	// Without WebAssembly, which we leave out, New logs an error that is none.
	nrilog.Set(logger{slog.New(slog.DiscardHandler)})
	defer nrilog.Set(logger{cfg.Log})
	var err error
	p.nri, err = adaptation.New(runtimeName, cfg.Version, p.synchronize, p.unsolicited,
		adaptation.WithSocketPath(cfg.Socket),
		adaptation.WithPluginPath(cfg.PluginDir),
		adaptation.WithPluginConfigPath(cfg.PluginConfigDir))
	if err != nil {
		return nil, fmt.Errorf("nri: %w", err)
	}
	return p, nil
}

// Start starts the installed plugins and listens for others.
func (p *Plugins) Start(pods Pods) error {
	p.pods = pods
	if err := p.nri.Start(); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	return nil
}

// Close ends the plugins that were started and disconnects the others.
func (p *Plugins) Close() error {
	p.ended()
	p.nri.Stop()
	return nil
}

// Hold implements plugins.Set.
func (p *Plugins) Hold() (release func()) { return p.nri.BlockPluginSync().Unblock }

// Tell implements plugins.Set.
func (p *Plugins) Tell(ctx context.Context, ev plugins.Event, of pod.Pod, c *plugins.Container) error {
	sandbox := podOf(&of)
	var ctr *api.Container
	if c != nil {
		ctr = containerOf(c)
	}
	switch ev {
	case plugins.PodRuns:
		return p.nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: sandbox})
	case plugins.PodUpdated:
		return p.nri.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: sandbox})
	case plugins.PodStopped:
		return p.nri.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: sandbox})
	case plugins.PodRemoved:
		return p.nri.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: sandbox})
	case plugins.ContainerCreated:
		return p.nri.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: sandbox, Container: ctr})
	case plugins.ContainerStarts:
		return p.nri.StartContainer(ctx, &api.StartContainerRequest{Pod: sandbox, Container: ctr})
	case plugins.ContainerStarted:
		return p.nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: sandbox, Container: ctr})
	case plugins.ContainerUpdated:
		return p.nri.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: sandbox, Container: ctr})
	case plugins.ContainerStopped:
		res, err := p.nri.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox, Container: ctr})
		p.update(ctx, res.GetUpdate())
		return err
	case plugins.ContainerRemoved:
		return p.nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: sandbox, Container: ctr})
	}
	return nil
}

// Adjust implements plugins.Set.
func (p *Plugins) Adjust(ctx context.Context, of pod.Pod, c plugins.Container) error {
	res, err := p.nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: podOf(&of), Container: containerOf(&c)})
	if err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	g := nrigenerate.SpecGenerator(editor{c.Spec}, nrigenerate.WithCDIDeviceInjector(p.pods.InjectCDI))
	if err := g.Adjust(res.GetAdjust()); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	p.update(ctx, res.GetUpdate())
	return nil
}

// UpdatePod implements plugins.Set.
func (p *Plugins) UpdatePod(ctx context.Context, of pod.Pod, overhead, resources *podconfig.Resources) error {
	if _, err := p.nri.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
		Pod: podOf(&of), OverheadLinuxResources: resourcesOf(overhead), LinuxResources: resourcesOf(resources),
	}); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	return nil
}

// AdjustUpdate implements plugins.Set.
func (p *Plugins) AdjustUpdate(ctx context.Context, of pod.Pod, c plugins.Container, r *specs.LinuxResources) error {
	res, err := p.nri.UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: podOf(&of), Container: containerOf(&c), LinuxResources: api.FromOCILinuxResources(r, nil),
	})
	if err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	var others []*api.ContainerUpdate
	for _, u := range res.GetUpdate() {
		if u.GetContainerId() != c.ID {
			others = append(others, u)
		} else if changed := u.GetLinux().GetResources(); changed != nil {
			*r = *changed.ToOCI()
			raiseSwap(r.Memory)
		}
	}
	p.update(ctx, others)
	return nil
}

// raiseSwap keeps a limit of memory that a plugin has raised alone from lying above that of memory
// and swap together, which the caller had set to the old limit.
func raiseSwap(m *specs.LinuxMemory) {
	if m != nil && m.Limit != nil && m.Swap != nil && *m.Swap >= 0 && *m.Swap < *m.Limit {
		m.Swap = m.Limit
	}
}

// update makes the changes that plugins want of other containers, and returns those that failed.
func (p *Plugins) update(ctx context.Context, updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate) {
	for _, u := range updates {
		r := u.GetLinux().GetResources()
		if r == nil {
			continue
		}
		if err := p.pods.UpdatePlugged(ctx, u.GetContainerId(), r.ToOCI()); err != nil {
			if !u.GetIgnoreFailure() {
				failed = append(failed, u)
			}
			p.log.Warn("limits that a plugin wants are not set", "err", err)
		}
	}
	return failed
}

// synchronize tells a plugin that has come what there is.
func (p *Plugins) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	pods, containers := p.pods.Plugged()
	sandboxes, ctrs := make([]*api.PodSandbox, 0, len(pods)), make([]*api.Container, 0, len(containers))
	for i := range pods {
		sandboxes = append(sandboxes, podOf(&pods[i]))
	}
	for i := range containers {
		ctrs = append(ctrs, containerOf(&containers[i]))
	}
	updates, err := tell(ctx, sandboxes, ctrs)
	if err != nil {
		return err
	}
	p.update(ctx, updates)
	return nil
}

// unsolicited makes changes that a plugin wants by itself.
func (p *Plugins) unsolicited(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	return p.update(p.ctx, updates), nil
}
