package pod

import (
	"context"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/reading"
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

// meter is Meter on this host.
type meter struct{}

func (meter) Cgroup(_ context.Context, path string) (cgstat.Usage, error) { return cgstat.Read(path) }

func (meter) Processes(ctx context.Context, path string, first int) (cgstat.Processes, error) {
	return cgstat.ReadProcesses(ctx, path, first)
}

func (meter) Interfaces(_ context.Context, netns string) ([]network.InterfaceUsage, error) {
	return network.Usage(netns)
}

// meters are the readings of everything that is measured, by id of pod or container.
type meters struct {
	containers, pods reading.Cache[cgstat.Usage]
	disk             reading.Cache[diskUsage]
	interfaces       reading.Cache[[]network.InterfaceUsage]
	processes        reading.Cache[cgstat.Processes]
}

func (x *meters) forgetContainer(id string) {
	x.containers.Forget(id)
	x.disk.Forget(id)
	x.processes.Forget(id)
}

func (x *meters) forgetPod(id string) {
	x.pods.Forget(id)
	x.interfaces.Forget(id)
}

// meterLimit bounds one reading: the kernel answers in microseconds.
const meterLimit = 5 * time.Second

// bounded has read done within the Manager's life.
func bounded[T any](m *Manager, limit time.Duration, read func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (v T, err error) {
		err = m.life.Run(ctx, limit, func(ctx context.Context) error {
			v, err = read(ctx)
			return err
		})
		return v, err
	}
}

func (m *Manager) keepContainer(id string) bool { return m.containers.Exact(id) != nil }

func (m *Manager) keepPod(id string) bool { return m.pods.Exact(id) != nil }
