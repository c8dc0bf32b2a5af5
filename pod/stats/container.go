package stats

import (
	"context"
	"sync"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/reading"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/snapshot"
)

// statsLimit is how long lists of readings wait for all of them.
const statsLimit = time.Second

// Container reads a container's use. Of one that does not run only the writable layer is
// given. A reading may be UsageAge old.
func (x *Reader) Container(ctx context.Context, id string) (Container, error) {
	e, err := x.Containers.Find(id)
	if err != nil {
		return Container{}, failure.During("stats of container", id, err)
	}
	s, err := x.stats(ctx, e, 0)
	return s, failure.During("stats of container", e.ID, err)
}

// List reads the use of all running containers that fit f, in parallel. One that
// cannot be read within a second is left out. The writable layers' use may be
// DiskUsageAge old.
func (x *Reader) List(ctx context.Context, f state.ContainerFilter) []Container {
	es := x.Containers.Each(func(r *state.ContainerRecord) bool { return r.Phase == state.ContainerRunning && f.Fits(r) })
	return readAll(ctx, x, es, func(ctx context.Context, e *state.ContainerEntry) (Container, error) {
		return x.stats(ctx, e, x.DiskUsageAge)
	})
}

// readAll reads of each entry, many at a time, within statsLimit. Those that fail are left out.
func readAll[R, T any](ctx context.Context, x *Reader, es []*table.Entry[R], read func(context.Context, *table.Entry[R]) (T, error)) []T {
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
				x.Log.Debug("stats left out", "container", e.ID, "err", err)
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

// atOnce is how many readings one request makes at a time.
const atOnce = 32

func (x *Reader) stats(ctx context.Context, e *state.ContainerEntry, diskAge time.Duration) (Container, error) {
	rec := e.Get()
	s := Container{ID: e.ID, PodID: rec.PodID}
	if rec.Phase == state.ContainerRunning {
		r, err := x.readContainer(ctx, e)
		if err != nil {
			return s, err
		}
		s.Usage, s.CPURate = r.Val, rate(&r)
	} else {
		s.Usage.Time = time.Now()
	}
	u, err := x.diskUsage(ctx, e.ID, diskAge)
	if err != nil {
		return s, err
	}
	s.DiskTime, s.DiskBytes, s.DiskInodes = u.at, uint64(max(u.Bytes, 0)), uint64(max(u.Inodes, 0))
	return s, nil
}

func (x *Reader) readContainer(ctx context.Context, e *state.ContainerEntry) (reading.Reading[cgstat.Usage], error) {
	return x.usage.Get(ctx, e.ID, x.UsageAge, x.keepContainer,
		bounded(x, meterLimit, func(ctx context.Context) (cgstat.Usage, error) {
			p := x.Pods.Exact(e.Get().PodID)
			if p == nil {
				return cgstat.Usage{}, errdefs.Errorf(errdefs.ErrNotFound, "its pod is gone")
			}
			path, err := x.Cgroups.Container(&p.Get().Config, e.ID)
			if err != nil {
				return cgstat.Usage{}, err
			}
			return x.Meter.Cgroup(ctx, path)
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
func (x *Reader) diskUsage(ctx context.Context, id string, age time.Duration) (diskUsage, error) {
	r, err := x.disk.Get(ctx, id, age, x.keepContainer,
		bounded(x, life.CleanupLimit, func(ctx context.Context) (diskUsage, error) {
			u, err := x.Snapshots.Usage(ctx, id)
			return diskUsage{u, time.Now()}, err
		}))
	return r.Val, err
}
