// Package record keeps one small JSON document per object on a tmpfs: the truth that
// a restarted daemon finds.
//
//	DIR/<id>/<name>    {"version":1, …}
//
// A new field does not change the version: a program keeps the fields that it does not know when it
// rewrites the record.
//
// A document is replaced by an atomic rename and never synced: the file system does
// not outlive the machine's next boot, and neither do the objects. The object's
// directory holds whatever else belongs to it and goes with the record.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
)

// Dir is a directory of records of type T, each in a directory of its own.
type Dir[T any] struct {
	// Path is the absolute directory; Name the record's file name in each
	// object's directory.
	Path, Name string
	// Version is the newest format that T understands.
	Version int
}

// envelope is how a record is stored: the version comes next to the fields of T.
type envelope[T any] struct {
	Version int `json:"version"`
	Value   T   `json:"value"`
}

// Of is the directory of object id.
func (d Dir[T]) Of(id string) string { return filepath.Join(d.Path, id) }

// File is the record's file of object id.
func (d Dir[T]) File(id string) string { return filepath.Join(d.Of(id), d.Name) }

// Make makes the directory of a new object. fs.ErrExist if there is one.
func (d Dir[T]) Make(id string) error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return err
	}
	// Containers reach what is in it (resolv.conf, their root) only through mounts.
	return os.Mkdir(d.Of(id), 0o700)
}

// Write replaces the record of object id. kept is what Load returned for it; nil for a new record.
func (d Dir[T]) Write(id string, v T, kept *recordfile.Kept) error {
	b, err := kept.Marshal(envelope[T]{d.Version, v})
	if err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	if err := atomicfile.Write(d.File(id), b, 0o600); err != nil {
		return fmt.Errorf("write record %s: %w", id, err)
	}
	return nil
}

// Overwrite replaces the record of object id within the pages that its file already has, for a file
// system without space for a second file. A crash in the middle leaves a damaged record.
func (d Dir[T]) Overwrite(id string, v T, kept *recordfile.Kept) error {
	b, err := kept.Marshal(envelope[T]{d.Version, v})
	if err != nil {
		return fmt.Errorf("overwrite record %s: %w", id, err)
	}
	if err := overwrite(d.File(id), b); err != nil {
		return fmt.Errorf("overwrite record %s: %w", id, err)
	}
	return nil
}

func overwrite(path string, b []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if int64(len(b)) > st.Blocks*512 { // st_blocks counts units of 512 bytes (stat(2))
		return &fs.PathError{Op: "overwrite", Path: path, Err: unix.ENOSPC}
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(b)))
}

// Remove deletes the object's directory with all that is in it. The record goes
// first, so a crash leaves a directory without a record: LoadAll reports it as unread, with
// fs.ErrNotExist.
func (d Dir[T]) Remove(id string) error {
	if err := os.Remove(d.File(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	// Kept are the fields that T does not know, for each record that has any.
	Kept map[string]*recordfile.Kept
	// Unread are the directories without a readable record, by name, with the reason:
	// fs.ErrNotExist if there is no record, a *recordfile.NewerError if it is too new, an error
	// with transient.Is true if reading may succeed later, any other error if the record is
	// damaged.
	Unread map[string]error
}

// loaders is how many records are read at once. They are in memory (tmpfs), so more
// only helps as far as there are processors to parse them.
const loaders = 8

// LoadAll reads all records. A directory that does not exist holds none.
func (d Dir[T]) LoadAll() (Loaded[T], error) {
	l := Loaded[T]{Records: map[string]T{}, Kept: map[string]*recordfile.Kept{}, Unread: map[string]error{}}
	var waits transient.Waits
	entries, err := transient.Try(&waits, func() ([]os.DirEntry, error) { return os.ReadDir(d.Path) })
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
				v, kept, err := d.load(id, &waits)
				mu.Lock()
				if err != nil {
					l.Unread[id] = err
				} else {
					l.Records[id] = v
				}
				if kept != nil {
					l.Kept[id] = kept
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

// Load reads one record, and what T has no room for in it. What may pass (transient.Is) is tried
// again for half a second.
func (d Dir[T]) Load(id string) (T, *recordfile.Kept, error) { return d.load(id, &transient.Waits{}) }

func (d Dir[T]) load(id string, waits *transient.Waits) (T, *recordfile.Kept, error) {
	var e envelope[T]
	b, err := transient.Try(waits, func() ([]byte, error) { return recordfile.Read(d.File(id)) })
	if err != nil {
		return e.Value, nil, err
	}
	var kept *recordfile.Kept
	if !knowsAll(b, &e) {
		e = envelope[T]{}
		kept = recordfile.Keep(b, e)
		err = json.Unmarshal(b, &e)
	}
	if err != nil || e.Version > d.Version { // a newer format may not fit into T at all
		if newer := recordfile.CheckNotNewer(d.File(id), b, d.Version); newer != nil {
			return e.Value, nil, newer
		}
	}
	if err != nil {
		return e.Value, nil, fmt.Errorf("%s: %w", d.File(id), err)
	}
	if e.Version < 1 {
		return e.Value, nil, fmt.Errorf("%s: no version", d.File(id))
	}
	return e.Value, kept, nil
}

// knowsAll parses a record into v and reports whether v knows every field, as it nearly always
// does. If not, v is unusable.
func knowsAll(b []byte, v any) bool {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode(v) != nil {
		return false
	}
	_, err := dec.Token()
	return errors.Is(err, io.EOF)
}
