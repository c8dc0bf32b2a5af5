package server

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/toc"
	"github.com/coracle-project/coracle/image/registry"
)

// A registry that hangs, with more readers than there are slots: each of them waits no longer than
// it may, and those of another layer do not wait for them.
func TestRegistryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChunks()
		hung := &shown{Layer: lazy.Layer{Domain: "r.example", Timeout: time.Second}, chunks: c, slots: newSlots(), source: &source{}}
		let := make(chan struct{})
		var holders, readers sync.WaitGroup
		for range atOnce {
			holders.Go(func() { _ = hung.slots.in(t.Context(), func() error { <-let; return nil }) })
		}
		synctest.Wait()
		began := time.Now()
		for range 2 * atOnce {
			readers.Go(func() {
				_, err := hung.read(t.Context(), &toc.Node{}, &toc.Chunk{Next: 1})
				if err == nil || !strings.Contains(err.Error(), "r.example has not sent it in 1s") || time.Since(began) != time.Second {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
			})
		}
		synctest.Wait()
		err := c.slots.in(t.Context(), func() error { // as a reader of another layer
			if time.Since(began) > 0 {
				t.Error("it had to wait")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		readers.Wait()
		close(let)
		holders.Wait()
	})
}

// Readers of many layers, whose registry is slow, use no more memory than is allowed for all of
// them.
func TestMemoryOfFetches(t *testing.T) {
	const cost, most = 48 << 20, fetchedBytes / (48 << 20)
	var mu sync.Mutex
	var asked, now, highest int
	var all atomic.Int64
	full, answer := make(chan struct{}), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		asked, now = asked+1, now+1
		highest = max(highest, now)
		if asked == most {
			close(full)
		}
		mu.Unlock()
		<-answer
		mu.Lock()
		now--
		mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
	}))
	defer web.Close()
	s := New(nil, slog.New(slog.DiscardHandler))
	var readers sync.WaitGroup
	for range 10 {
		l, err := s.newShown("key", lazy.Layer{
			Blob: digest.FromString("blob"), Size: cost, Timeout: time.Hour, Domain: strings.TrimPrefix(web.URL, "http://"), Path: "app",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer l.source.close()
		for range atOnce {
			readers.Go(func() {
				if _, err := l.read(t.Context(), &toc.Node{}, &toc.Chunk{Next: 32 << 20, Size: 16 << 20}); !errors.Is(err, registry.ErrNotFound) {
					t.Error(err)
				}
				all.Add(1)
			})
		}
	}
	<-full
	if s.chunks.fetched.TryAcquire(cost) {
		t.Errorf("there is memory for more than %d chunks", most)
	}
	close(answer)
	readers.Wait()
	if highest != most || all.Load() != 10*atOnce {
		t.Errorf("%d chunks were fetched at the same time, %d in all", highest, all.Load())
	}
	if !s.chunks.fetched.TryAcquire(fetchedBytes) {
		t.Error("some memory is not given back")
	}
}

// The limit of connections to a registry counts those of all layers with the same settings.
func TestLayersShareConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, slog.New(slog.DiscardHandler))
		layer := func(most int) *source {
			l := lazy.Layer{Domain: "r.example", Path: "app", Hosts: registry.Config{MaxConcurrentDownloads: most}}
			x, err := s.newShown("key", l)
			if err != nil {
				t.Fatal(err)
			}
			return x.source
		}
		a, b, other := layer(1), layer(1), layer(2)
		_, release, err := a.slot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan func(), 1)
		go func() {
			_, release, err := b.slot(t.Context())
			if err != nil {
				t.Error(err)
			}
			second <- release
		}()
		synctest.Wait()
		if len(second) != 0 {
			t.Error("two connections at the same time, of one that is allowed")
		}
		if _, release, err := other.slot(t.Context()); err != nil {
			t.Error(err)
		} else {
			release()
		}
		release()
		(<-second)()
		for _, src := range []*source{a, b, other} {
			src.close()
		}
		if len(s.clients.of) != 0 {
			t.Errorf("%d clients are left", len(s.clients.of))
		}
	})
}
