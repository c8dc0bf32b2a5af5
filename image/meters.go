package image

import (
	"sync"

	"github.com/coracle-project/coracle/image/ingest"
)

// meters are those of the pulls under way.
type meters struct {
	mu  sync.Mutex
	all map[pullKey]*ingest.Meter
}

// watch subscribes to the meter of a pull, making it if the pull is the first.
func (ms *meters) watch(key pullKey, w *ingest.Watcher) (m *ingest.Meter, stop func()) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m = ms.all[key]
	if m == nil {
		m = &ingest.Meter{}
		ms.all[key] = m
	}
	m.Watch(w)
	return m, func() { ms.unwatch(key, m, w) }
}

func (ms *meters) unwatch(key pullKey, m *ingest.Meter, w *ingest.Watcher) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if m.Unwatch(w) {
		delete(ms.all, key)
	}
}
