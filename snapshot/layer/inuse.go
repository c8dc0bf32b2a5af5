package layer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Held are layers that cannot be removed until Release. The zero value has none.
type Held struct {
	store  *Store
	layers []digest.Digest
	unsure bool // others too, perhaps
}

// Hold counts a user of each layer, once for each time that it is named. ErrMissing, and none is
// held, if one is not there.
func (s *Store) Hold(diffIDs []digest.Digest) (Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range diffIDs {
		if s.layers[d] == nil {
			return Held{}, fmt.Errorf("%w: %s", ErrMissing, d)
		}
	}
	return s.holdLocked(diffIDs), nil
}

// HoldKnown is Hold for an existing snapshot. Its layers may be missing or in quarantine; they are
// held there too, and if they come back.
func (s *Store) HoldKnown(diffIDs []digest.Digest) Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holdLocked(diffIDs)
}

// HoldAll is HoldKnown for a snapshot whose layers are not known: it holds all layers that the
// store has now, and whatever is in quarantine.
func (s *Store) HoldAll() Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holdLocked(slices.Collect(maps.Keys(s.layers)))
	h.unsure = true
	s.unsure++
	return h
}

func (s *Store) holdLocked(diffIDs []digest.Digest) Held {
	for _, d := range diffIDs {
		s.users[d]++
	}
	return Held{store: s, layers: slices.Clone(diffIDs)}
}

// Release lets go of the layers.
func (h Held) Release() {
	if h.store != nil && h.release() {
		h.store.freed()
	}
}

// release is Release without telling, and says whether there is something to tell: a layer that was
// to be removed has lost its last user.
func (h Held) release() (freed bool) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	if h.unsure {
		h.store.unsure--
	}
	for _, d := range h.layers {
		if h.store.users[d]--; h.store.users[d] > 0 {
			continue
		}
		delete(h.store.users, d)
		if l := h.store.layers[d]; l != nil && l.wanted {
			l.wanted, freed = false, true
		}
	}
	return freed
}

// holdWhole is Hold for one layer that is unpacked.
func (s *Store) holdWhole(diffID digest.Digest) (h Held, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.layers[diffID]; l == nil || l.lazy != "" {
		return Held{}, false
	}
	return s.holdLocked([]digest.Digest{diffID}), true
}

// mayBeUsed says whether a snapshot or a reader has the layer or may have it, be it in quarantine
// or in the store.
func (s *Store) mayBeUsed(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsure > 0 || s.users[diffID] > 0
}

// HasAny says whether a layer is there, lazy or whole.
func (s *Store) HasAny(diffID digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.layers[diffID] != nil
}

// Paths returns the layers' directories, lowest first. Overlayfs takes none twice
// (ELOOP), but images have layers twice, mostly empty ones: the uppermost is enough, for
// it covers or hides whatever its double could show.
// Until release the directories stay where they are.
func (s *Store) Paths(layers []digest.Digest) (dirs []string, release func()) {
	dirs = make([]string, 0, len(layers))
	var releases []func()
	seen := make(map[digest.Digest]bool, len(layers))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range slices.Backward(layers) {
		if !seen[d] {
			seen[d] = true
			dir, release := s.reachLocked(d)
			dirs, releases = append(dirs, dir), append(releases, release)
		}
	}
	slices.Reverse(dirs)
	return dirs, func() {
		for _, release := range releases {
			release()
		}
	}
}

// reached is a lazy layer whose mount is being reached for by its path. Guarded by Store.mu.
type reached struct {
	by   int
	drop bool // the last of them does
}

// reachLocked is where a layer's fs is now. With a lazy one release says that it is not reached for
// by that path any more.
func (s *Store) reachLocked(d digest.Digest) (dir string, release func()) {
	if l := s.layers[d]; l == nil || l.lazy == "" {
		return s.layerDir(d), func() {}
	}
	r := s.reached[d]
	if r == nil {
		r = &reached{}
		s.reached[d] = r
	}
	r.by++
	return s.lazyDir(d), func() { s.endReach(d, r) }
}

func (s *Store) endReach(d digest.Digest, r *reached) {
	s.mu.Lock()
	r.by--
	if r.by == 0 && r.drop {
		s.mu.Unlock()
		if err := s.unmountLazy(d); err != nil {
			s.log.Warn("a lazy layer's mount is left", "layer", d.String(), "err", err)
		}
		s.mu.Lock() // until now no one could begin it again
	}
	defer s.mu.Unlock()
	if r.by == 0 {
		delete(s.reached, d)
	}
}

func (s *Store) isReached(d digest.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reached[d] != nil
}
