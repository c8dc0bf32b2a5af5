package image

import "sync"

// meter counts the bytes of one pull and tells all who wait for it.
type meter struct {
	mu          sync.Mutex
	done, total int64
	watchers    []*watcher
}

type watcher struct{ report func(done, total int64) }

func (m *meter) expect(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = total
	m.tellLocked()
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	m.tellLocked()
}

func (m *meter) tellLocked() {
	for _, w := range m.watchers {
		if w.report != nil {
			w.report(m.done, m.total)
		}
	}
}

// watch subscribes to the meter of a pull, making it if the pull is the first.
func (s *Store) watch(key pullKey, report func(done, total int64)) (m *meter, stop func()) {
	w := &watcher{report}
	s.meterMu.Lock()
	m = s.meters[key]
	if m == nil {
		m = &meter{}
		s.meters[key] = m
	}
	m.mu.Lock()
	m.watchers = append(m.watchers, w)
	m.mu.Unlock()
	s.meterMu.Unlock()
	return m, func() { s.unwatch(key, m, w) }
}

func (s *Store) unwatch(key pullKey, m *meter, w *watcher) {
	s.meterMu.Lock()
	defer s.meterMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.watchers {
		if m.watchers[i] == w {
			m.watchers = append(m.watchers[:i], m.watchers[i+1:]...)
			break
		}
	}
	if len(m.watchers) == 0 {
		delete(s.meters, key)
	}
}
