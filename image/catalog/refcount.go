package catalog

import (
	"sync"

	"github.com/opencontainers/go-digest"
)

// uses counts the index entries that need each blob and layer, so that who looks for garbage need
// not look at all images.
type uses struct {
	mu            sync.RWMutex
	blobs, layers map[digest.Digest]int
}

// Needs are blobs and layers.
type Needs struct{ Blobs, Layers map[digest.Digest]bool }

func NewNeeds() Needs { return Needs{map[digest.Digest]bool{}, map[digest.Digest]bool{}} }

// change counts again, and returns what nothing needs any more. Blobs of layers count if they are
// kept; else nothing but a pull needs them.
func (u *uses) change(ch change, keepBlobs bool) Needs {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.blobs == nil {
		u.blobs, u.layers = map[digest.Digest]int{}, map[digest.Digest]int{}
	}
	unneeded := NewNeeds()
	count := func(uses map[digest.Digest]int, d digest.Digest, n int, unneeded map[digest.Digest]bool) {
		if uses[d] += n; uses[d] == 0 {
			delete(uses, d)
			unneeded[d] = true
		}
	}
	all := func(e Entry, n int) {
		for d := range e.Documents {
			count(u.blobs, d, n, unneeded.Blobs)
		}
		if keepBlobs {
			for _, l := range e.Layers {
				count(u.blobs, l.Digest, n, unneeded.Blobs)
			}
		}
		for _, d := range e.Image.RootFS.DiffIDs {
			count(u.layers, d, n, unneeded.Layers)
		}
	}
	for _, e := range ch.come { // first, so that nothing seems to go that stays
		all(e, 1)
	}
	for _, e := range ch.gone {
		all(e, -1)
	}
	return unneeded
}

func (u *uses) blob(d digest.Digest) bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.blobs[d] > 0
}

func (u *uses) layer(d digest.Digest) bool {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.layers[d] > 0
}
