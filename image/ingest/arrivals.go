package ingest

import (
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
)

// arrivals are the blobs and archives that are being fetched, from a registry or a node.
type arrivals struct {
	mu  sync.Mutex
	all map[Incoming][]*spool
}

// Incoming is a blob or, with a diff id, the archive of the layer that it is said to unpack to.
// Both digests count: what an image claims of a blob is not enough to give away a layer that
// arrives for another one.
type Incoming struct{ Blob, DiffID digest.Digest }

// add adds what begins to arrive; end is called when it has its name, or never will.
func (a *arrivals) add(what Incoming, s *spool) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[Incoming][]*spool{}
	}
	a.all[what] = append(a.all[what], s)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		rest := slices.DeleteFunc(a.all[what], func(o *spool) bool { return o == s })
		if a.all[what] = rest; len(rest) == 0 {
			delete(a.all, what)
		}
	}
}

// of is what is arriving; nil if it is not. It may arrive from several registries. One
// without a first byte does not count: it may wait for a node that is busy, or for one that in turn
// waits for this node. To another node such a wait looks like a stall.
func (a *arrivals) of(what Incoming) *spool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.all[what] {
		if s.begun() {
			return s
		}
	}
	return nil
}
