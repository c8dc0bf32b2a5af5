package table

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// Table finds entries by id, by unique id prefix and by identity. Its lock is never
// held over anything but memory.
type Table[T any] struct {
	what string // "pod" or "container", for errors
	// visible says whether callers may see an object in this state: half-made and
	// half-removed ones are ours only.
	visible func(*T) bool

	mu    sync.RWMutex
	byID  map[string]*Entry[T]
	names map[string]string // identity to id
}

// New makes an empty table. what names its objects in errors.
func New[T any](what string, visible func(*T) bool) *Table[T] {
	return &Table[T]{
		what: what, visible: visible,
		byID: map[string]*Entry[T]{}, names: map[string]string{},
	}
}

// Add puts e under its id and identity. If the identity is taken it changes nothing
// and returns the id that has it.
func (x *Table[T]) Add(identity string, e *Entry[T]) (holder string, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, taken := x.names[identity]; taken {
		return id, false
	}
	x.names[identity], e.name = e.ID, identity
	x.byID[e.ID] = e
	return e.ID, true
}

// Remove forgets e. Its identity is free afterwards.
func (x *Table[T]) Remove(e *Entry[T]) {
	x.Release(e)
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.byID, e.ID)
}

// Release frees e's identity, while e itself stays until all of it is cleaned up.
func (x *Table[T]) Release(e *Entry[T]) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.names[e.name] == e.ID {
		delete(x.names, e.name)
	}
}

// Find returns the visible entry with the id or unique id prefix. ErrNotFound if there
// is none, ErrInvalid if the prefix fits several.
func (x *Table[T]) Find(id string) (*Entry[T], error) {
	if id == "" {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "empty %s id", x.what)
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e, ok := x.byID[id]; ok {
		if !x.visible(e.Get()) {
			return nil, errdefs.Errorf(errdefs.ErrNotFound, "no %s %q", x.what, id)
		}
		return e, nil
	}
	var found *Entry[T]
	if len(id) < IDLength {
		for full, e := range x.byID {
			if !strings.HasPrefix(full, id) || !x.visible(e.Get()) {
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

// Exact returns the entry with just this id, visible or not; nil if there is none.
func (x *Table[T]) Exact(id string) *Entry[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.byID[id]
}

// Each returns all entries that fit, in no order.
func (x *Table[T]) Each(fits func(*T) bool) []*Entry[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var es []*Entry[T]
	for _, e := range x.byID {
		if fits(e.Get()) {
			es = append(es, e)
		}
	}
	return es
}

// Versions returns what readers see now of all entries that fit, in no order.
func (x *Table[T]) Versions(fits func(*T) bool) []*Version[T] {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var vs []*Version[T]
	for _, e := range x.byID {
		if v := e.val.Load(); fits(&v.Record) {
			vs = append(vs, v)
		}
	}
	return vs
}

// IDLength is the length of pod and container ids, as peers have it.
const IDLength = 64

// NewID makes an id that no one can guess.
func NewID() string {
	var b [IDLength / 2]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}
