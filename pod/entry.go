package pod

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/pod/record"
	"github.com/coracle-project/coracle/pod/reserve"
)

// entry is one pod or container in memory: its record as an immutable value that
// readers take without waiting, and the turn that operations on it wait for.
type entry[T any] struct {
	id      string
	turn    turn // of the operations that callers ask for
	tidy    turn // of background clean-up, which those do not wait for
	dir     record.Dir[T]
	reserve *reserve.Reserve // on the file system of dir
	kept    *recordfile.Kept
	val     atomic.Pointer[version[T]]
	// changed is told of each new record, under mu: it must not wait for anything.
	changed func(before, after *T)

	name string // identity, while it is taken; guarded by the index's lock

	mu   sync.Mutex // held while the record is replaced; readers do not need it
	gone bool       // the record has been deleted
}

// errGone is what update returns when the object has been deleted meanwhile.
var errGone = errors.New("deleted meanwhile")

func newEntry[T any](id string, dir record.Dir[T], r *reserve.Reserve, v T, changed func(before, after *T)) *entry[T] {
	e := &entry[T]{id: id, turn: make(turn, 1), tidy: make(turn, 1), dir: dir, reserve: r, changed: changed}
	e.val.Store(&version[T]{record: v})
	return e
}

// get returns the present record, which must not be changed.
func (e *entry[T]) get() *T { return &e.val.Load().record }

// update changes a copy of the record, writes it, and only then shows it to readers.
func (e *entry[T]) update(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) {
		err = e.dir.Write(e.id, next, e.kept)
		return err == nil, err
	})
}

// intend is update for operations that free resources: stop, remove and rollback. A full file
// system must not prevent them, so intend then changes the record in memory only. If the daemon
// dies before the record is written, the next one finds the old record. It asks the shim what runs,
// and the caller, who got no answer, retries.
func (e *entry[T]) intend(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) {
		err = e.writeAnyhow(next)
		if reserve.NoSpace(err) {
			e.reserve.NotWritten(e.id, err)
			err = nil
		}
		return err == nil, err
	})
}

// observe is update for what has happened whether or not it can be written down,
// such as an exit: readers see it even if the write fails.
func (e *entry[T]) observe(change func(*T)) error {
	return e.replace(change, func(next T) (shown bool, err error) { return true, e.writeAnyhow(next) })
}

// writeAnyhow writes the record. On a full file system it uses the space of the reserve, then of
// the old record.
func (e *entry[T]) writeAnyhow(next T) error {
	err := e.dir.Write(e.id, next, e.kept)
	if reserve.NoSpace(err) && e.reserve.Free() {
		err = e.dir.Write(e.id, next, e.kept)
	}
	if reserve.NoSpace(err) && e.dir.Overwrite(e.id, next, e.kept) == nil {
		err = nil
	}
	return err
}

func (e *entry[T]) replace(change func(*T), write func(T) (shown bool, err error)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return errGone
	}
	next := *e.get()
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
func (e *entry[T]) show(next T) {
	after := &version[T]{record: next}
	before := e.val.Swap(after)
	e.changed(&before.record, &after.record)
}

// erase deletes the record and the object's directory.
func (e *entry[T]) erase() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.dir.Remove(e.id); err != nil {
		return err
	}
	e.gone = true
	return nil
}

func (e *entry[T]) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}
