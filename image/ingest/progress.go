package ingest

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

// Meter counts the bytes of one pull, in all and by layers, and tells all who wait for it.
type Meter struct {
	mu          sync.Mutex
	done, total int64
	layers      []*LayerProgress
	watchers    []*Watcher
}

// Watcher is told of each change; nil is not told.
type Watcher struct {
	Report func(done, total int64)
	Layer  func(LayerProgress)
}

// Watch tells w of each change from now on, and at once what there is of the layers.
func (m *Meter) Watch(w *Watcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = append(m.watchers, w)
	if w.Layer != nil {
		for _, l := range m.layers {
			w.Layer(*l)
		}
	}
}

// Unwatch tells w no more. It says whether it was the last one.
func (m *Meter) Unwatch(w *Watcher) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = slices.DeleteFunc(m.watchers, func(other *Watcher) bool { return other == w })
	return len(m.watchers) == 0
}

// Expect says how many bytes come.
func (m *Meter) Expect(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total = total
	m.tellLocked()
}

// ExpectLayers says which layers come, and returns their meters.
func (m *Meter) ExpectLayers(layers []ocispec.Descriptor) []part {
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

func (m *Meter) Add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addLocked(n)
}

func (m *Meter) addLocked(n int64) {
	m.done += n
	m.tellLocked()
}

func (m *Meter) tellLocked() {
	for _, w := range m.watchers {
		if w.Report != nil {
			w.Report(m.done, m.total)
		}
	}
}

// tellLayerLocked tells of a layer, if it still is one of those that are expected.
func (m *Meter) tellLayerLocked(l *LayerProgress) {
	if l.Place >= len(m.layers) || m.layers[l.Place] != l {
		return
	}
	for _, w := range m.watchers {
		if w.Layer != nil {
			w.Layer(*l)
		}
	}
}

// part is the meter of one layer. It may outlive its pull, where another one wants the
// layer, too; a next pull with the same meter may expect other layers by then.
type part struct {
	*Meter
	of *LayerProgress // guarded by mu
}

func (p part) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.Done += n
	p.tellLayerLocked(p.of)
	p.addLocked(n)
}

// Complete says that the layer is there.
func (p part) Complete() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of.Complete = true
	p.tellLayerLocked(p.of)
}

// Unwatched is the meter of a layer that no one waits for.
func Unwatched() part { return part{&Meter{}, &LayerProgress{}} }

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
		s.m.Add(done - s.told)
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
