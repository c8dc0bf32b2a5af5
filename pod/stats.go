package pod

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/coracle-project/coracle/snapshot"
)

// statsLimit is how long ListStats waits for a container.
const statsLimit = time.Second

// unlimited is what a v1 cgroup without a memory limit says at least.
const unlimited = 1 << 60

// Stats reads a running container's use. Of one that does not run only the writable
// layer is given.
func (m *Manager) Stats(ctx context.Context, id string) (ContainerStats, error) {
	e, err := m.containers.find(id)
	if err != nil {
		return ContainerStats{}, during("stats of container", id, err)
	}
	s, err := m.stats(ctx, e, 0)
	return s, during("stats of container", e.id, err)
}

// ListStats reads the use of all running containers that fit f, in parallel. One whose
// shim does not answer within a second is left out. The writable layers' use may be
// Options.DiskUsageAge old.
func (m *Manager) ListStats(ctx context.Context, f ContainerFilter) []ContainerStats {
	ctx, cancel := context.WithTimeout(ctx, statsLimit)
	defer cancel()
	var es []*entry[containerRecord]
	for _, e := range m.containers.each((*containerRecord).visible) {
		if c := e.get().value(); c.State == Running && f.fits(&c) {
			es = append(es, e)
		}
	}
	var (
		mu  sync.Mutex
		out = make([]ContainerStats, 0, len(es))
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
			s, err := m.stats(ctx, e, m.opts.DiskUsageAge)
			if err != nil {
				m.log.Debug("stats left out", "id", e.id, "err", err)
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

// atOnce is how many calls to the shim one request makes at a time.
const atOnce = 32

func (m *Manager) stats(ctx context.Context, e *entry[containerRecord], age time.Duration) (ContainerStats, error) {
	rec := e.get()
	s := ContainerStats{ID: e.id, Time: time.Now()}
	if rec.Phase == containerRunning {
		st, err := m.Shim.Stats(ctx, rec.PodID, e.id)
		if err != nil {
			return s, err
		}
		s.Time = st.Time
		s.CPUUsage = st.CPUUsage
		s.MemoryUsage, s.MemoryWorkingSet, s.MemoryRSS = st.MemoryUsage, st.MemoryWorkingSet, st.MemoryRSS
		s.SwapUsage = st.MemorySwap
		s.PageFaults, s.MajorPageFaults = st.MemoryPageFaults, st.MemoryMajorPageFaults
		if st.MemoryLimit > st.MemoryWorkingSet && st.MemoryLimit < unlimited {
			s.MemoryAvailable = st.MemoryLimit - st.MemoryWorkingSet
		}
	}
	u, err := m.diskUsage(ctx, e.id, age)
	if err != nil {
		return s, err
	}
	s.DiskBytes, s.DiskInodes = uint64(max(u.Bytes, 0)), uint64(max(u.Inodes, 0))
	return s, nil
}

// diskUsage is one reading of a writable layer.
type diskUsage struct {
	snapshot.Usage
	at time.Time
}

// diskUsages are the latest readings, by container id.
type diskUsages struct {
	mu   sync.Mutex
	last map[string]diskUsage
}

func (d *diskUsages) get(id string) (diskUsage, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, ok := d.last[id]
	return u, ok
}

func (d *diskUsages) set(id string, u diskUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		d.last = map[string]diskUsage{}
	}
	d.last[id] = u
}

func (d *diskUsages) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.last, id)
}

// diskUsage counts what a container's writable layer takes, or returns a reading not
// older than age. Counting walks the layer, so calls at the same time join, and if it
// takes longer than ctx an old reading is better than none.
func (m *Manager) diskUsage(ctx context.Context, id string, age time.Duration) (diskUsage, error) {
	last, ok := m.disk.get(id)
	if ok && time.Since(last.at) < age {
		return last, nil
	}
	u, err := m.usage.Do(ctx, id, func(ctx context.Context) (u diskUsage, err error) {
		err = m.life.run(ctx, cleanupLimit, func(ctx context.Context) error {
			u.Usage, err = m.Snapshots.Usage(ctx, id)
			u.at = time.Now()
			return err
		})
		if err == nil && m.containers.exact(id) != nil {
			m.disk.set(id, u)
		}
		return u, err
	})
	if ok && errors.Is(err, context.DeadlineExceeded) {
		return last, nil
	}
	return u, err
}

// NetworkReady says why pods cannot be connected now, nil if they can.
func (m *Manager) NetworkReady(ctx context.Context) error { return m.Network.Ready(ctx) }
