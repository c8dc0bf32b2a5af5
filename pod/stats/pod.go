package stats

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/reading"
	"github.com/coracle-project/coracle/pod/state"
)

// Pod reads a pod's use. Of one that is not ready nothing is left to be read.
func (x *Reader) Pod(ctx context.Context, podID string) (Pod, error) {
	e, err := x.Pods.Find(podID)
	if err != nil {
		return Pod{}, failure.During("stats of pod", podID, err)
	}
	s, err := x.podStats(ctx, e)
	return s, failure.During("stats of pod", e.ID, err)
}

// ListPods reads the use of all ready pods that fit f, in parallel. One that cannot be
// read within a second is left out.
func (x *Reader) ListPods(ctx context.Context, f PodFilter) []Pod {
	wanted := state.PodFilter{ID: f.ID, State: state.Ready, Labels: f.Labels}
	return readAll(ctx, x, x.Pods.Each(wanted.Fits), x.podStats)
}

func (x *Reader) podStats(ctx context.Context, e *state.PodEntry) (Pod, error) {
	s := Pod{ID: e.ID, Usage: cgstat.Usage{Time: time.Now()}}
	rec := e.Get()
	if rec.Phase != state.PodReady {
		return s, nil
	}
	for _, ce := range state.ContainersOf(x.Containers, e.ID) {
		if ce.Get().Phase != state.ContainerRunning {
			continue
		}
		c, err := x.stats(ctx, ce, x.DiskUsageAge)
		if err != nil {
			if ctx.Err() != nil {
				return s, err
			}
			continue // it has ended meanwhile
		}
		s.Containers = append(s.Containers, c)
	}
	r, err := x.readPod(ctx, e, s.Containers)
	if err != nil {
		return s, err
	}
	s.Usage, s.CPURate = r.Val, rate(&r)
	if netns := rec.Namespaces.Net; netns != "" {
		n, err := x.interfaces.Get(ctx, e.ID, x.UsageAge, x.keepPod,
			bounded(x, meterLimit, func(ctx context.Context) ([]network.InterfaceUsage, error) {
				return x.Meter.Interfaces(ctx, netns)
			}))
		if err != nil {
			return s, err
		}
		s.Interfaces, s.NetworkTime = n.Val, n.At
	}
	return s, nil
}

// readPod reads the pod's cgroup; without one, or before the first container is in it, the
// containers are added up.
func (x *Reader) readPod(ctx context.Context, e *state.PodEntry,
	containers []Container,
) (reading.Reading[cgstat.Usage], error) {
	path, err := x.Cgroups.Pod(&e.Get().Config)
	if err != nil {
		return reading.Reading[cgstat.Usage]{}, err
	}
	return x.podUsage.Get(ctx, e.ID, x.UsageAge, x.keepPod,
		bounded(x, meterLimit, func(ctx context.Context) (cgstat.Usage, error) {
			if path == "" {
				return sum(containers), nil
			}
			u, err := x.Meter.Cgroup(ctx, path)
			if errors.Is(err, cgstat.ErrNone) {
				return sum(containers), nil
			}
			return u, err
		}))
}

// sum adds up what can be added: not limits, not peaks, and not the time lost waiting, which
// containers lose at the same time.
func sum(containers []Container) cgstat.Usage {
	t := cgstat.Usage{Time: time.Now()}
	for i := range containers {
		u := &containers[i].Usage
		t.CPU.Total += u.CPU.Total
		t.CPU.User += u.CPU.User
		t.CPU.System += u.CPU.System
		t.CPU.Periods += u.CPU.Periods
		t.CPU.ThrottledPeriods += u.CPU.ThrottledPeriods
		t.CPU.Throttled += u.CPU.Throttled
		t.Memory.Used += u.Memory.Used
		t.Memory.WorkingSet += u.Memory.WorkingSet
		t.Memory.RSS += u.Memory.RSS
		t.Memory.Cache += u.Memory.Cache
		t.Memory.Mapped += u.Memory.Mapped
		t.Memory.Kernel += u.Memory.Kernel
		t.Memory.ActiveFile += u.Memory.ActiveFile
		t.Memory.InactiveFile += u.Memory.InactiveFile
		t.Memory.Swap += u.Memory.Swap
		t.Memory.Failures += u.Memory.Failures
		t.Memory.PageFaults += u.Memory.PageFaults
		t.Memory.MajorPageFaults += u.Memory.MajorPageFaults
		t.Memory.OOMKills += u.Memory.OOMKills
		t.Tasks += u.Tasks
		for _, d := range u.Devices {
			t.Devices = addDevice(t.Devices, d)
		}
	}
	return t
}

// addDevice keeps one entry for each device: metrics with the same labels twice are refused.
func addDevice(all []cgstat.Device, d cgstat.Device) []cgstat.Device {
	i := slices.IndexFunc(all, func(have cgstat.Device) bool { return have.Major == d.Major && have.Minor == d.Minor })
	if i < 0 {
		return append(all, d)
	}
	all[i].ReadBytes += d.ReadBytes
	all[i].WriteBytes += d.WriteBytes
	all[i].Reads += d.Reads
	all[i].Writes += d.Writes
	return all
}

// Processes looks at all processes of a running container.
func (x *Reader) Processes(ctx context.Context, id string) (cgstat.Processes, error) {
	e, err := state.FindRunning(x.Containers, id)
	if err != nil {
		return cgstat.Processes{}, failure.During("processes of container", id, err)
	}
	r, err := x.processes.Get(ctx, e.ID, x.UsageAge, x.keepContainer,
		bounded(x, meterLimit, func(ctx context.Context) (cgstat.Processes, error) {
			p := x.Pods.Exact(e.Get().PodID)
			if p == nil {
				return cgstat.Processes{}, errdefs.Errorf(errdefs.ErrNotFound, "its pod is gone")
			}
			path, err := x.Cgroups.Container(&p.Get().Config, e.ID)
			if err != nil {
				return cgstat.Processes{}, err
			}
			return x.Meter.Processes(ctx, path, e.Get().Pid)
		}))
	return r.Val, failure.During("processes of container", e.ID, err)
}
