package pod

import (
	"context"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/reading"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/snapshot"
)

// statsLimit is how long lists of readings wait for all of them.
const statsLimit = time.Second

// Stats reads a container's use. Of one that does not run only the writable layer is
// given. A reading may be Options.UsageAge old.
func (m *Manager) Stats(ctx context.Context, id string) (ContainerStats, error) {
	e, err := m.containers.Find(id)
	if err != nil {
		return ContainerStats{}, errdefs.During("stats of container", id, err)
	}
	s, err := m.stats(ctx, e, 0)
	return s, errdefs.During("stats of container", e.ID, err)
}

// ListStats reads the use of all running containers that fit f, in parallel. One that
// cannot be read within a second is left out. The writable layers' use may be
// Options.DiskUsageAge old.
func (m *Manager) ListStats(ctx context.Context, f state.ContainerFilter) []ContainerStats {
	es := m.containers.Each(func(r *state.ContainerRecord) bool { return r.Phase == state.ContainerRunning && f.Fits(r) })
	return readAll(ctx, m, es, func(ctx context.Context, e *state.ContainerEntry) (ContainerStats, error) {
		return m.stats(ctx, e, m.opts.DiskUsageAge)
	})
}

// readAll reads of each entry, many at a time, within statsLimit. Those that fail are left out.
func readAll[R, T any](ctx context.Context, m *Manager, es []*table.Entry[R], read func(context.Context, *table.Entry[R]) (T, error)) []T {
	ctx, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	var (
		mu  sync.Mutex
		out = make([]T, 0, len(es))
		wg  sync.WaitGroup
	)
	slots := make(chan struct{}, atOnce)
	for _, e := range es {
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-slots }()
			s, err := read(ctx, e)
			if err != nil {
				m.log.Debug("stats left out", "id", e.ID, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, s)
		})
	}
	wg.Wait()
	return out
}

// atOnce is how many readings, or calls to the shim, one request makes at a time.
const atOnce = 32

func (m *Manager) stats(ctx context.Context, e *state.ContainerEntry, diskAge time.Duration) (ContainerStats, error) {
	rec := e.Get()
	s := ContainerStats{ID: e.ID, PodID: rec.PodID}
	if rec.Phase == state.ContainerRunning {
		r, err := m.containerUsage(ctx, e)
		if err != nil {
			return s, err
		}
		s.Usage, s.CPURate = r.Val, rate(&r)
	} else {
		s.Usage.Time = time.Now()
	}
	u, err := m.diskUsage(ctx, e.ID, diskAge)
	if err != nil {
		return s, err
	}
	s.DiskTime, s.DiskBytes, s.DiskInodes = u.at, uint64(max(u.Bytes, 0)), uint64(max(u.Inodes, 0))
	return s, nil
}

func (m *Manager) containerUsage(ctx context.Context, e *state.ContainerEntry) (reading.Reading[cgstat.Usage], error) {
	return m.meters.containers.Get(ctx, e.ID, m.opts.UsageAge, m.keepContainer,
		bounded(m, meterLimit, func(ctx context.Context) (cgstat.Usage, error) {
			p := m.pods.Exact(e.Get().PodID)
			if p == nil {
				return cgstat.Usage{}, errdefs.Errorf(errdefs.ErrNotFound, "its pod is gone")
			}
			path, err := m.opts.cgroups().Container(&p.Get().Config, e.ID)
			if err != nil {
				return cgstat.Usage{}, err
			}
			return m.Meter.Cgroup(ctx, path)
		}))
}

// rate is how many nanoseconds of CPU time a second took between two readings; nil if
// there is one only.
func rate(r *reading.Reading[cgstat.Usage]) *uint64 {
	if r.Before == nil {
		return nil
	}
	span := r.Val.Time.Sub(r.Before.Val.Time)
	used := r.Val.CPU.Total - r.Before.Val.CPU.Total
	if span <= 0 || used < 0 {
		return nil
	}
	n := uint64(float64(used) / span.Seconds())
	return &n
}

// diskUsage is what a container's writable layer takes.
type diskUsage struct {
	snapshot.Usage
	at time.Time
}

// diskUsage counts what a container's writable layer takes, or returns a reading not
// older than age. Counting walks the layer.
func (m *Manager) diskUsage(ctx context.Context, id string, age time.Duration) (diskUsage, error) {
	r, err := m.meters.disk.Get(ctx, id, age, m.keepContainer,
		bounded(m, life.CleanupLimit, func(ctx context.Context) (diskUsage, error) {
			u, err := m.Snapshots.Usage(ctx, id)
			return diskUsage{u, time.Now()}, err
		}))
	return r.Val, err
}

// NetworkReady says why pods cannot be connected now, nil if they can.
func (m *Manager) NetworkReady(ctx context.Context) error { return m.Network.Ready(ctx) }
