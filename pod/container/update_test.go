package container

import (
	"context"
	"errors"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
)

// updater is a shim that changes limits, and does nothing else.
type updater struct {
	Shim
	limits map[string]*specs.LinuxResources // by id of container
}

func (u *updater) Update(_ context.Context, _, id string, r *specs.LinuxResources) error {
	u.limits[id] = r
	return nil
}

// newUpdater makes containers whose limits are changed. fail is the fault point that fails.
func newUpdater(t *testing.T, fail fault.Point) (*Containers, *updater, *podtest.Node) {
	n := podtest.NewNode(t)
	shim := &updater{limits: map[string]*specs.LinuxResources{}}
	return New(Config{
		Pods: n.Pods, Containers: n.Containers, Dirs: n.Dirs, Life: n.Life, Log: n.Log, Shim: shim, Notify: &plugins.Notifier{Pods: n.Pods},
		FaultAt: func(_ context.Context, at fault.Point) error {
			if at == fail {
				return fault.ErrInjected
			}
			return nil
		},
	}), shim, n
}

// limited adds a container with a limit of memory, and a bundle that has that limit and a rule for
// devices.
func limited(t *testing.T, n *podtest.Node, phase state.ContainerPhase) *state.ContainerEntry {
	t.Helper()
	e := n.Container(n.Pod(), podtest.In(phase), func(r *state.ContainerRecord) {
		r.Config.Resources = podconfig.Resources{CPUShares: 100, MemoryLimit: 1 << 20}
	})
	bundle := n.Dirs.Containers().Of(e.ID)
	s := podtest.Must[*specs.Spec](t)(ocispec.Read(bundle))
	s.Linux.Resources = e.Get().Config.Resources.On(podconfig.LimitsOfHost()).Linux()
	s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Access: "rwm"}}
	// As plugins do.
	pids := int64(100)
	s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
	s.Linux.Resources.CPU.Cpus = "2-3"
	s.Linux.Resources.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}, {Pagesize: "1GB", Limit: 2}}
	podtest.OK(t, ocispec.Write(bundle, s))
	return e
}

// bundleLimits are what a container starts with.
func bundleLimits(t *testing.T, n *podtest.Node, e *state.ContainerEntry) *specs.LinuxResources {
	t.Helper()
	return podtest.Must[*specs.Spec](t)(ocispec.Read(n.Dirs.Containers().Of(e.ID))).Linux.Resources
}

// What a change of other limits has to leave as it is.
func keepsPlugged(t *testing.T, l *specs.LinuxResources) {
	t.Helper()
	if l.Pids == nil || *l.Pids.Limit != 100 || l.CPU.Cpus != "2-3" || len(l.HugepageLimits) != 2 {
		t.Errorf("limits of plugins are lost: %+v, CPU %+v", l, l.CPU)
	}
}

func TestUpdateResources(t *testing.T) {
	cs, shim, n := newUpdater(t, "")
	ctx := t.Context()
	created := limited(t, n, state.ContainerCreated)
	podtest.OK(t, cs.UpdateResources(ctx, created.ID, podconfig.Resources{MemoryLimit: 2 << 20}))
	if l := bundleLimits(t, n, created); *l.Memory.Limit != 2<<20 || *l.CPU.Shares != 100 || len(l.Devices) == 0 {
		t.Errorf("starts with %+v", l)
	}
	keepsPlugged(t, bundleLimits(t, n, created))
	if len(shim.limits) != 0 {
		t.Errorf("the shim was told of a container that does not run: %v", shim.limits)
	}
	running := limited(t, n, state.ContainerRunning)
	podtest.OK(t, cs.UpdateResources(ctx, running.ID, podconfig.Resources{CPUQuota: 5000}))
	if l := shim.limits[running.ID]; *l.CPU.Quota != 5000 || l.Memory != nil {
		t.Errorf("updated with %+v", l)
	}
	if l := bundleLimits(t, n, running); *l.CPU.Quota != 5000 || *l.Memory.Limit != 1<<20 || *l.CPU.Shares != 100 || len(l.Devices) == 0 {
		t.Errorf("starts again with %+v", l)
	}
	keepsPlugged(t, bundleLimits(t, n, running))
	if got := running.Get().Config.Resources; got.CPUShares != 100 || got.MemoryLimit != 1<<20 || got.CPUQuota != 5000 {
		t.Errorf("recorded %+v", got)
	}
	if err := cs.UpdateResources(ctx, running.ID, podconfig.Resources{CPUShares: -1}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("bad limit: %v", err)
	}
	exited := limited(t, n, state.ContainerExited)
	if err := cs.UpdateResources(ctx, exited.ID, podconfig.Resources{CPUShares: 1}); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("exited: %v", err)
	}
}

// TestInterruptedUpdate: until the shim and the bundle have the new limits, the record has the old
// ones, so a caller that compares tries again.
func TestInterruptedUpdate(t *testing.T) {
	for _, at := range []fault.Point{faultUpdateChanged, faultUpdateRewritten} {
		cs, shim, n := newUpdater(t, at)
		e := limited(t, n, state.ContainerRunning)
		if err := cs.UpdateResources(t.Context(), e.ID, podconfig.Resources{CPUQuota: 5000}); !errors.Is(err, fault.ErrInjected) {
			t.Errorf("%s: %v", at, err)
		}
		if shim.limits[e.ID] == nil || e.Get().Config.Resources.CPUQuota != 0 {
			t.Errorf("%s: the shim has %v, the record %+v", at, shim.limits[e.ID], e.Get().Config.Resources)
		}
	}
}
