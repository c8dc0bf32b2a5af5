// Package stats reads what pods and containers use.
package stats

import (
	"context"
	"log/slog"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/reading"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// Meter reads what cgroups and network namespaces have used; internal/cgstat and network/
// do. A test double that injects faults is the other implementation. Paths of cgroups begin
// at the root of each hierarchy.
type Meter interface {
	// Cgroup is cgstat.ErrNone if there is none.
	Cgroup(ctx context.Context, path string) (cgstat.Usage, error)
	// Processes are those of a cgroup, the first of which is first.
	Processes(ctx context.Context, path string, first int) (cgstat.Processes, error)
	Interfaces(ctx context.Context, netns string) ([]network.InterfaceUsage, error)
}

// HostMeter is Meter on this host.
type HostMeter struct{}

func (HostMeter) Cgroup(_ context.Context, path string) (cgstat.Usage, error) {
	return cgstat.Read(path)
}

func (HostMeter) Processes(ctx context.Context, path string, first int) (cgstat.Processes, error) {
	return cgstat.ReadProcesses(ctx, path, first)
}

func (HostMeter) Interfaces(_ context.Context, netns string) ([]network.InterfaceUsage, error) {
	return network.Usage(netns)
}

// Reader reads what pods and containers use, and keeps each reading for a while.
type Reader struct {
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Cgroups    podconfig.Cgroups
	Meter      Meter // HostMeter, except in tests
	Snapshots  DiskMeter
	Life       *life.Life
	Log        *slog.Logger
	// UsageAge is how old a reading of a cgroup or of interfaces may be.
	UsageAge time.Duration
	// DiskUsageAge is how old a reading of a writable layer's usage may be in a list.
	DiskUsageAge time.Duration

	// Readings, by id of pod or container.
	usage, podUsage reading.Cache[cgstat.Usage]
	disk            reading.Cache[diskUsage]
	interfaces      reading.Cache[[]network.InterfaceUsage]
	processes       reading.Cache[cgstat.Processes]
}

// DiskMeter tells what a container's writable layer takes; snapshot.Store does.
type DiskMeter interface {
	Usage(ctx context.Context, id string) (snapshot.Usage, error)
}

// ForgetContainer drops the readings of a removed container.
func (x *Reader) ForgetContainer(id string) {
	x.usage.Forget(id)
	x.disk.Forget(id)
	x.processes.Forget(id)
}

// ForgetPod drops the readings of a removed pod.
func (x *Reader) ForgetPod(id string) {
	x.podUsage.Forget(id)
	x.interfaces.Forget(id)
}

// meterLimit bounds one reading: the kernel answers in microseconds.
const meterLimit = 5 * time.Second

// bounded has read done within the Reader's life.
func bounded[T any](x *Reader, limit time.Duration, read func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (v T, err error) {
		err = x.Life.Run(ctx, limit, func(ctx context.Context) error {
			v, err = read(ctx)
			return err
		})
		return v, err
	}
}

func (x *Reader) keepContainer(id string) bool { return x.Containers.Exact(id) != nil }

func (x *Reader) keepPod(id string) bool { return x.Pods.Exact(id) != nil }
