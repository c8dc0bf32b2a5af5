package pod

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// index finds entries by id, by unique id prefix and by identity. Its lock is never
// held over anything but memory.
type index[T any] struct {
	what string // "pod" or "container", for errors
	// visible says whether callers may see an object in this state: half-made and
	// half-removed ones are ours only.
	visible func(*T) bool

	mu    sync.RWMutex
	byID  map[string]*entry[T]
	names map[string]string // identity to id
}

func newIndex[T any](what string, visible func(*T) bool) *index[T] {
	return &index[T]{
		what: what, visible: visible,
		byID: map[string]*entry[T]{}, names: map[string]string{},
	}
}

// add puts e under its id and identity. If the identity is taken it changes nothing
// and returns the id that has it.
func (x *index[T]) add(identity string, e *entry[T]) (holder string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, taken := x.names[identity]; taken {
		return id, false
	}
	x.names[identity], e.name = e.id, identity
	x.byID[e.id] = e
	return e.id, true
}

// remove forgets e. Its identity is free afterwards.
func (x *index[T]) remove(e *entry[T]) {
	x.release(e)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, e.id)
}

// release frees e's identity, while e itself stays until all of it is cleaned up.
func (x *index[T]) release(e *entry[T]) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.names[e.name] == e.id {
		delete(x.names, e.name)
	}
}

// find returns the visible entry with the id or unique id prefix. ErrNotFound if there
// is none, ErrInvalid if the prefix fits several.
func (x *index[T]) find(id string) (*entry[T], error) {
	if id == "" {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "empty %s id", x.what)
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e, ok := x.byID[id]; ok {
		if !x.visible(e.get()) {
			return nil, errdefs.Errorf(errdefs.ErrNotFound, "no %s %q", x.what, id)
		}
		return e, nil
	}
	var found *entry[T]
	if len(id) < idLength {
		for full, e := range x.byID {
			if !strings.HasPrefix(full, id) || !x.visible(e.get()) {
				continue
			}
			if found != nil {
				return nil, errdefs.Errorf(errdefs.ErrInvalid, "%s id prefix %q fits more than one", x.what, id)
			}
			found = e
		}
	}
	if found == nil {
		return nil, errdefs.Errorf(errdefs.ErrNotFound, "no %s %q", x.what, id)
	}
	return found, nil
}

// exact returns the entry with just this id, visible or not; nil if there is none.
func (x *index[T]) exact(id string) *entry[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byID[id]
}

// each returns all entries that fit, in no order.
func (x *index[T]) each(fits func(*T) bool) []*entry[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var es []*entry[T]
	for _, e := range x.byID {
		if fits(e.get()) {
			es = append(es, e)
		}
	}
	return es
}

// versions returns what readers see now of all entries that fit, in no order.
func (x *index[T]) versions(fits func(*T) bool) []*version[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var vs []*version[T]
	for _, e := range x.byID {
		if v := e.val.Load(); fits(&v.record) {
			vs = append(vs, v)
		}
	}
	return vs
}

// idLength is the length of pod and container ids, as peers have it.
const idLength = 64

// newID makes an id that no one can guess.
func newID() string {
	var b [idLength / 2]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
