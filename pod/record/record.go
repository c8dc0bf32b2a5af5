// Package record keeps one small JSON document per object on a tmpfs: the truth that
// a restarted daemon finds.
//
//	DIR/<id>/<name>    {"version":1, …}
//
// A document is replaced by an atomic rename and never synced: the file system does
// not outlive the machine's next boot, and neither do the objects. The object's
// directory holds whatever else belongs to it and goes with the record.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// ErrVersion says that a record was written by a daemon too new for this one.
var ErrVersion = errors.New("unknown record version")

// Dir is a directory of records of type T, each in a directory of its own.
type Dir[T any] struct {
	// Path is the absolute directory; Name the record's file name in each
	// object's directory.
	Path, Name string
	// Version is the newest format that T understands.
	Version int
}

// envelope is how a record lies on disk: the version stands beside the fields of T.
type envelope[T any] struct {
	Version int `json:"version"`
	Value   T   `json:"value"`
}

// Of is the directory of object id.
func (d Dir[T]) Of(id string) string { return filepath.Join(d.Path, id) }

// Make makes the directory of a new object. fs.ErrExist if there is one.
func (d Dir[T]) Make(id string) error {
	if err := os.MkdirAll(d.Path, 0o711); err != nil {
		return err
	}
	// 0711: processes in containers that run as other users reach files
	// (resolv.conf, the root) only through mounts, but must not be able to list.
	return os.Mkdir(d.Of(id), 0o711)
}

// Write replaces the record of object id.
func (d Dir[T]) Write(id string, v T) error {
	b, err := json.Marshal(envelope[T]{d.Version, v})
	if err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	if err := atomicfile.Write(filepath.Join(d.Of(id), d.Name), b, 0o600); err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	return nil
}

// Remove deletes the object's directory with all that is in it. The record goes
// first, so that what a crash leaves is a directory without one, which LoadAll
// reports as stray.
func (d Dir[T]) Remove(id string) error {
	if err := os.Remove(filepath.Join(d.Of(id), d.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record %s: %w", id, err)
	}
	if err := os.RemoveAll(d.Of(id)); err != nil {
		return fmt.Errorf("remove record %s: %w", id, err)
	}
	return nil
}

// Loaded is what LoadAll found.
type Loaded[T any] struct {
	Records map[string]T
	// Stray are directories without a readable record, by name, with the reason.
	Stray map[string]error
}

// loaders is how many records are read at once. They are in memory (tmpfs), so more
// only helps as far as there are processors to parse them.
const loaders = 8

// LoadAll reads all records. A directory that does not exist holds none.
func (d Dir[T]) LoadAll() (Loaded[T], error) {
	l := Loaded[T]{Records: map[string]T{}, Stray: map[string]error{}}
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("load records: %w", err)
	}
	var (
		mu   sync.Mutex // guards l
		wg   sync.WaitGroup
		next = make(chan string)
	)
	for range loaders {
		wg.Go(func() {
			for id := range next {
				v, err := d.load(id)
				mu.Lock()
				if err != nil {
					l.Stray[id] = err
				} else {
					l.Records[id] = v
				}
				mu.Unlock()
			}
		})
	}
	for _, e := range entries {
		next <- e.Name()
	}
	close(next)
	wg.Wait()
	return l, nil
}

func (d Dir[T]) load(id string) (T, error) {
	var e envelope[T]
	b, err := os.ReadFile(filepath.Join(d.Of(id), d.Name))
	if err != nil {
		return e.Value, err
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e.Value, err
	}
	if e.Version < 1 || e.Version > d.Version {
		return e.Value, fmt.Errorf("%w %d, this daemon knows up to %d", ErrVersion, e.Version, d.Version)
	}
	return e.Value, nil
}
