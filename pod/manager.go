package pod

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/container"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/recovery"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/sandbox"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/stats"
	"github.com/coracle-project/coracle/pod/streams"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/pod/watch"
)

// cleaners is how many background deletions run at a time, for the first time or again: they mostly
// wait for the kernel's RCU, but each that runs competes with pods being started.
const cleaners = 8

// closeLimit bounds clean-up under way when the Manager is closed.
const closeLimit = 5 * time.Second

// Manager is the pods and containers of a node. All methods may be called
// concurrently; ids may be given as unique prefixes.
type Manager struct {
	opts Options
	Deps
	dirs state.Layout
	log  *slog.Logger

	pods       *state.PodTable
	containers *state.ContainerTable

	readings       *stats.Reader
	notify         *plugins.Notifier
	specs          *spec.Builder
	checkpoints    *checkpoint.Store
	podLives       *sandbox.Pods
	containerLives *container.Containers

	selinux  *mac.SELinux
	apparmor *mac.AppArmor

	exits *exits.Tracker
	clean *life.Cleaner
	life  *life.Life

	events watch.Watchers

	streams *streams.Server // Exec, Attach, PortForward and what belongs to them

	recovery *recovery.Recoverer
	reserve  *reserve.Reserve
	created  state.Stamps

	closePins func() // closes what New made because Deps had none

	// faultAt is fault.Point.At, except in crash tests.
	faultAt func(ctx context.Context, point fault.Point) error
}

// New makes a Manager. It does no I/O; Start does.
func New(o Options, d Deps) *Manager {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Meter == nil {
		d.Meter = stats.HostMeter{}
	}
	closePins := func() {}
	if d.Namespaces == nil {
		own := &pins{}
		d.Namespaces, closePins = own, own.maker.Close
	}
	if d.Starting == nil {
		d.Starting = func() {}
	}
	m := &Manager{
		opts: o.withDefaults(), Deps: d, dirs: state.Layout(o.StateDir), log: d.Log,
		pods:       table.New("pod", (*state.PodRecord).Visible),
		containers: table.New("container", (*state.ContainerRecord).Visible),
		life:       life.New(), selinux: mac.NewSELinux(d.Labels), apparmor: mac.NewAppArmor(d.Log),
		reserve: reserve.New(o.StateDir, d.Log), closePins: closePins,
		faultAt: func(ctx context.Context, point fault.Point) error { return point.At(ctx) },
	}
	m.readings = &stats.Reader{
		Pods: m.pods, Containers: m.containers, Cgroups: m.opts.cgroups(), Meter: d.Meter, Snapshots: d.Snapshots,
		Life: m.life, Log: m.log, UsageAge: m.opts.UsageAge, DiskUsageAge: m.opts.DiskUsageAge,
	}
	m.clean = life.NewCleaner(m.life, cleaners, m.log)
	m.exits = exits.New(d.Shim, m.life)
	m.checkpoints = checkpoint.New(checkpoint.Config{
		Pods: m.pods, Containers: m.containers, Dirs: m.dirs, Shim: d.Shim, Images: d.Images, Snapshots: d.Snapshots,
		Life: m.life, Clean: m.clean, Log: m.log, FaultAt: m.at, Restore: o.Restore, RestoreBases: o.RestoreBases,
	})
	m.notify = &plugins.Notifier{Plugins: d.Plugins, Pods: m.pods, Containers: m.containers, Dirs: m.dirs, Log: m.log}
	m.podLives = sandbox.New(sandbox.Config{
		Pods: m.pods, Dirs: m.dirs, Handlers: m.opts.Handlers, CgroupDriver: m.opts.CgroupDriver, Cgroups: m.opts.cgroups(),
		UnsetSeccomp: m.opts.UnsetSeccomp, ShimBinary: m.opts.ShimBinary,
		Shim: d.Shim, Network: d.Network, Namespaces: d.Namespaces, Containers: containersOfPod{m}, Readings: m.readings,
		Exits: m.exits, Notify: m.notify, SELinux: m.selinux, AppArmor: m.apparmor, Reserve: m.reserve, Created: &m.created,
		Events: &m.events, Life: m.life, Clean: m.clean, Log: m.log, FaultAt: m.at, Starting: d.Starting,
		AwaitRecovery: m.awaitRecovery,
	})
	m.specs = &spec.Builder{
		Handlers: m.opts.Handlers, Cgroups: m.opts.cgroups(), Rlimits: m.opts.Rlimits, UnsetSeccomp: m.opts.UnsetSeccomp,
		CDISpecDirs: m.opts.CDISpecDirs,
		Dirs:        m.dirs, Containers: m.containers, SELinux: m.selinux, AppArmor: m.apparmor, SharedPID: m.podLives.SharedPID,
	}
	m.containerLives = container.New(container.Config{
		Pods: m.pods, Containers: m.containers, Dirs: m.dirs, Handlers: m.opts.Handlers,
		Shim: d.Shim, Images: d.Images, Snapshots: d.Snapshots, Namespaces: d.Namespaces, Readings: m.readings,
		Specs: m.specs, Checkpoints: m.checkpoints, Exits: m.exits, Notify: m.notify, SELinux: m.selinux, Reserve: m.reserve,
		Created: &m.created, Events: &m.events, Life: m.life, Clean: m.clean, Log: m.log, FaultAt: m.at, Starting: d.Starting,
		AwaitRecovery: m.awaitRecovery,
	})
	m.recovery = recovery.New(recovery.Config{
		Pods: m.pods, Containers: m.containers, Dirs: m.dirs, Records: o.Records,
		Shim: d.Shim, Network: d.Network, Snapshots: d.Snapshots, Namespaces: d.Namespaces,
		PodLives: m.podLives, ContainerLives: m.containerLives,
		Exits: m.exits, SELinux: m.selinux, Reserve: m.reserve, Created: &m.created, Events: &m.events,
		Life: m.life, Clean: m.clean, Log: m.log, FaultAt: m.at,
	})
	m.opts.Records = nil // Start frees them
	m.streams = streams.New(m.pods, m.containers, d.Shim, m.life, m.dirs.Containers().Path)
	return m
}

// Close stops the Manager's own work and waits for it. Pods and containers stay;
// operations under way are cut off, and recovery of the next Manager ends them.
func (m *Manager) Close() error {
	m.events.End()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = m.clean.Drain(ctx) // what is not done is the next Manager's
	m.life.End()
	m.closePins()
	return nil
}

// Flush waits until what Stop and Remove left to the background has been tried at least
// once, or ctx ends.
func (m *Manager) Flush(ctx context.Context) error {
	return failure.During("clean up after", "pods", m.clean.Drain(ctx))
}

// StateUsage returns the usage of the state directory's file system.
func (m *Manager) StateUsage() (reserve.Usage, error) { return reserve.UsageOf(m.opts.StateDir) }

// Pod returns a pod, or ErrNotFound. Of an unmanaged pod only the id is known.
func (m *Manager) Pod(podID string) (state.Pod, error) {
	e, err := m.pods.Find(podID)
	if err != nil {
		if u, ok := m.recovery.Find(UnmanagedPod, podID); ok {
			return u.Pod(), nil
		}
		return state.Pod{}, err
	}
	return e.Get().Value(), nil
}

// Container returns a container, or ErrNotFound. Of an unmanaged container only its id, its pod's
// id and the reason are known.
func (m *Manager) Container(id string) (state.Container, error) {
	e, err := m.containers.Find(id)
	if err != nil {
		if u, ok := m.recovery.Find(UnmanagedContainer, id); ok {
			return u.Container(), nil
		}
		return state.Container{}, err
	}
	return e.Get().Value(), nil
}

// NetworkReady says why pods cannot be connected now, nil if they can.
func (m *Manager) NetworkReady(ctx context.Context) error { return m.Network.Ready(ctx) }

// Stats reads a container's use. Of one that does not run only the writable layer is
// given. A reading may be Options.UsageAge old.
func (m *Manager) Stats(ctx context.Context, id string) (stats.Container, error) {
	return m.readings.Container(ctx, id)
}

// ListStats reads the use of all running containers that fit f, in parallel. One that
// cannot be read within a second is left out. The writable layers' use may be
// Options.DiskUsageAge old.
func (m *Manager) ListStats(ctx context.Context, f state.ContainerFilter) []stats.Container {
	return m.readings.List(ctx, f)
}

// PodStats reads a pod's use. Of one that is not ready nothing is left to be read.
func (m *Manager) PodStats(ctx context.Context, podID string) (stats.Pod, error) {
	return m.readings.Pod(ctx, podID)
}

// ListPodStats reads the use of all ready pods that fit f, in parallel. One that cannot be
// read within a second is left out.
func (m *Manager) ListPodStats(ctx context.Context, f stats.PodFilter) []stats.Pod {
	return m.readings.ListPods(ctx, f)
}

// Processes looks at all processes of a running container.
func (m *Manager) Processes(ctx context.Context, id string) (cgstat.Processes, error) {
	return m.readings.Processes(ctx, id)
}

// Watch returns the events from now on, in order for each object. The channel is closed
// by stop, by Close, and when the caller reads too slowly.
func (m *Manager) Watch() (events <-chan watch.Event, stop func()) {
	return m.events.Watch()
}

// Plugged is all that runs or may run, for a plugin that has come.
func (m *Manager) Plugged() ([]state.Pod, []plugins.Container) {
	containers := m.notify.All()
	return slices.Collect(m.Pods(state.PodFilter{})), containers
}

// InjectCDI gives a specification the devices that a plugin wants in it.
func (m *Manager) InjectCDI(into *specs.Spec, devices []string) error {
	return m.specs.InjectCDI(into, devices)
}

// at is faultAt as it is at the time of the call.
func (m *Manager) at(ctx context.Context, point fault.Point) error { return m.faultAt(ctx, point) }

// Checkpoint saves a running container in an archive at location, an absolute path, and lets
// it go on. It is frozen meanwhile, so that memory and files fit together. On error no archive
// is left. ErrUnsupported without criu(8); timeout 0 means two minutes.
func (m *Manager) Checkpoint(ctx context.Context, id, location string, timeout time.Duration) error {
	return m.checkpoints.Container(ctx, id, location, timeout)
}

// CheckpointPod saves containers of a ready pod, which must all run, in an existing empty
// directory: all are frozen before the first is saved, and go on when the last one is. On error the
// directory is empty again. What a daemon that was killed left of another one there is removed
// first.
func (m *Manager) CheckpointPod(ctx context.Context, podID, dir string, ids []string) error {
	return m.checkpoints.Pod(ctx, podID, dir, ids)
}

// awaitRecovery is recovery's Await; recovery is made last.
func (m *Manager) awaitRecovery(ctx context.Context) error { return m.recovery.Await(ctx) }

// Start recovers what there is, as package recovery describes it. It returns when that is done, or
// after five seconds: a shim that hangs must not keep the daemon from showing what its records say.
// Recovery then continues in the background: objects that are not recovered yet can be listed, and
// operations on them wait. Before Start, only Close may be called.
func (m *Manager) Start(ctx context.Context) error { return m.recovery.Start(ctx) }

// Ready returns why nothing can be started yet; nil once the shims have reported what runs.
func (m *Manager) Ready() error { return m.recovery.Ready() }

// RecoveryErrors counts the failed recovery steps. The log has the details.
func (m *Manager) RecoveryErrors() int { return m.recovery.Errors() }

// Unmanaged returns all unmanaged pods and containers, pods first.
func (m *Manager) Unmanaged() []Unmanaged { return m.recovery.All() }
