package image

import (
	"io"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// LayerProgress is how far one layer of a pull is.
type LayerProgress struct {
	Place       int           // in the manifest, from 0
	Digest      digest.Digest // of its blob
	Done, Total int64         // bytes of the blob
	Complete    bool          // it is unpacked
}

// meter counts the bytes of one pull, in all and by layers, and tells all who wait for it.
type meter struct {
	mu          sync.Mutex
	done, total int64
	layers      []*LayerProgress
	watchers    []*watcher
}

// watcher is told of each change; nil is not told.
type watcher struct {
	report func(done, total int64)
	layer  func(LayerProgress)
}

func (m *meter) expect(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = total
	m.tellLocked()
}

// expectLayers says which layers come, and returns their meters.
func (m *meter) expectLayers(layers []ocispec.Descriptor) []part {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layers = make([]*LayerProgress, len(layers))
	parts := make([]part, len(layers))
	for i, l := range layers {
		m.layers[i] = &LayerProgress{Place: i, Digest: l.Digest, Total: l.Size}
		parts[i] = part{m, m.layers[i]}
		m.tellLayerLocked(m.layers[i])
	}
	return parts
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(n)
}

func (m *meter) addLocked(n int64) {
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

// tellLayerLocked tells of a layer, if it still is one of those that are expected.
func (m *meter) tellLayerLocked(l *LayerProgress) {
	if l.Place >= len(m.layers) || m.layers[l.Place] != l {
		return
	}
	for _, w := range m.watchers {
		if w.layer != nil {
			w.layer(*l)
		}
	}
}

// part is the meter of one layer. It may outlive its pull, where another one wants the
// layer, too; a next pull with the same meter may expect other layers by then.
type part struct {
	*meter
	of *LayerProgress // guarded by mu
}

func (p part) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.Done += n
	p.tellLayerLocked(p.of)
	p.addLocked(n)
}

// complete says that the layer is there.
func (p part) complete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.Complete = true
	p.tellLayerLocked(p.of)
}

// scaled reads a layer's archive, and counts it as the blob, which has another size.
type scaled struct {
	r             io.Reader
	m             part
	blob, archive int64 // sizes; that of the archive is -1 if it is not known

	mu         sync.Mutex
	read, told int64
	ended      bool
}

func (s *scaled) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read += int64(n)
	if s.archive > 0 && !s.ended {
		s.tellLocked(int64(float64(s.blob) * min(1, float64(s.read)/float64(s.archive))))
	}
	return n, err
}

func (s *scaled) tellLocked(done int64) {
	if done != s.told {
		s.m.add(done - s.told)
		s.told = done
	}
}

// end says that the layer is here, or that all of it has to come from elsewhere.
func (s *scaled) end(here bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if here {
		s.tellLocked(s.blob)
	} else {
		s.tellLocked(0)
	}
}

// meters are those of the pulls under way.
type meters struct {
	mu  sync.Mutex
	all map[pullKey]*meter
}

// watch subscribes to the meter of a pull, making it if the pull is the first. Who comes
// later is told what there is of the layers.
func (ms *meters) watch(key pullKey, w *watcher) (m *meter, stop func()) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m = ms.all[key]
	if m == nil {
		m = &meter{}
		ms.all[key] = m
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = append(m.watchers, w)
	if w.layer != nil {
		for _, l := range m.layers {
			w.layer(*l)
		}
	}
	return m, func() { ms.unwatch(key, m, w) }
}

func (ms *meters) unwatch(key pullKey, m *meter, w *watcher) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = slices.DeleteFunc(m.watchers, func(other *watcher) bool { return other == w })
	if len(m.watchers) == 0 {
		delete(ms.all, key)
	}
}
