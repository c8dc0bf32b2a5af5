// Package table has the pods or the containers of a node in memory: each with its record, which it
// writes, and the turn of the operations on it.
package table

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/pod/reserve"
)

// Entry is one pod or container in memory: its record as an immutable value that
// readers take without waiting, and the turn that operations on it wait for.
type Entry[T any] struct {
	ID      string
	Turn    Turn // of the operations that callers ask for
	Tidy    Turn // of background clean-up, which those do not wait for
	dir     record.Dir[T]
	reserve *reserve.Reserve // on the file system of dir
	Kept    *recordfile.Kept
	val     atomic.Pointer[Version[T]]
	// changed is told of each new record, under mu: it must not wait for anything.
	changed func(before, after *T)

	name string // identity, while it is taken; guarded by Table.mu

	mu   sync.Mutex // held while the record is replaced; readers do not need it
	gone bool       // the record has been deleted
}

// ErrGone is what Update returns when the object has been deleted meanwhile.
var ErrGone = errors.New("deleted meanwhile")

// NewEntry makes an entry whose record is not written yet. changed is told of each new record,
// with a lock held: it must not wait.
func NewEntry[T any](id string, dir record.Dir[T], r *reserve.Reserve, v T, changed func(before, after *T)) *Entry[T] {
	e := &Entry[T]{ID: id, Turn: make(Turn, 1), Tidy: make(Turn, 1), dir: dir, reserve: r, changed: changed}
	e.val.Store(&Version[T]{Record: v})
	return e
}

// Get returns the present record, which must not be changed.
func (e *Entry[T]) Get() *T { return &e.val.Load().Record }

// Update changes a copy of the record, writes it, and only then shows it to readers.
func (e *Entry[T]) Update(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) {
		err = e.dir.Write(e.ID, next, e.Kept)
		return err == nil, err
	})
}

// Intend is Update for operations that free resources: stop, remove and rollback. A full file
// system must not prevent them, so Intend then changes the record in memory only. If the daemon
// dies before the record is written, the next one finds the old record. It asks the shim what runs,
// and the caller, who got no answer, retries.
func (e *Entry[T]) Intend(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) {
		err = e.writeAnyhow(next)
		if reserve.NoSpace(err) {
			e.reserve.NotWritten(e.ID, err)
			err = nil
		}
		return err == nil, err
	})
}

// Observe is Update for what has happened whether or not it can be written down,
// such as an exit: readers see it even if the write fails.
func (e *Entry[T]) Observe(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) { return true, e.writeAnyhow(next) })
}

// writeAnyhow writes the record. On a full file system it uses the space of the reserve, then of
// the old record.
func (e *Entry[T]) writeAnyhow(next T) error {
	err := e.dir.Write(e.ID, next, e.Kept)
	if reserve.NoSpace(err) && e.reserve.Free() {
		err = e.dir.Write(e.ID, next, e.Kept)
	}
	if reserve.NoSpace(err) && e.dir.Overwrite(e.ID, next, e.Kept) == nil {
		err = nil
	}
	return err
}

func (e *Entry[T]) replace(change func(*T), write func(T) (shown bool, err error)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return ErrGone
	}
	next := *e.Get()
	change(&next)
	shown, err := write(next)
	if shown {
		e.show(next)
	}
	if err == nil {
		e.reserve.Wrote()
	}
	return err
}

// show makes next what readers see. The caller holds mu.
func (e *Entry[T]) show(next T) {
	after := &Version[T]{Record: next}
	before := e.val.Swap(after)
	e.changed(&before.Record, &after.Record)
}

// Erase deletes the record and the object's directory.
func (e *Entry[T]) Erase() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.dir.Remove(e.ID); err != nil {
		return err
	}
	e.gone = true
	return nil
}

// IsGone says whether Erase has deleted the record.
func (e *Entry[T]) IsGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}
