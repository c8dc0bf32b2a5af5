// Package logfile keeps a program's log within bounds: a file that is set aside when it has grown, as
// FILE.1, and the ones before as FILE.2 and so on.
//
// What is set aside is copied and the file is then truncated, by the process that writes it and between two
// lines. So none of its lines is lost, and the file stays the same one: other processes that have it
// as their standard error (a child, one that is started again, a panic's trace) need not be told. Only
// what such a process writes in the moment between copy and truncation is lost.
//
// The loggers in use elsewhere rename the file, which others then go on writing to, and cut it anywhere.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
)

// Sizes of a log.
const (
	// Limit is the size in bytes from which on a file is set aside.
	Limit = 10 << 20
	// Kept is how many files that were set aside are kept.
	Kept = 3
)

// File is a log. It is safe for concurrent use.
type File struct {
	path  string
	limit int64

	mu    sync.Mutex
	f     *os.File
	size  int64
	retry int64 // the size from which on setting aside is tried again after it failed
}

// Open returns the log at path, which is made if there is none, for appending.
func Open(path string) (*File, error) { return open(path, Limit) }

func open(path string, limit int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("log %s is not a regular file: it cannot be set aside; name another", path), f.Close())
	}
	return &File{path: path, limit: limit, f: f, size: info.Size()}, nil
}

// Write appends p. It never fails: whoever writes a log has better things to do than to stop when the
// disk is full. What cannot be written is dropped.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, _ := l.f.Write(p)
	l.size += int64(n)
	if l.size >= max(l.limit, l.retry) && len(p) > 0 && p[len(p)-1] == '\n' {
		if err := l.setAside(); err != nil {
			l.retry = l.size + l.limit
			fmt.Fprintf(l.f, "the log could not be set aside: %v\n", err)
		}
	}
	return len(p), nil
}

// Close closes the file; what is written after that is dropped.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

func (l *File) setAside() error {
	copied, err := os.CreateTemp(filepath.Dir(l.path), filepath.Base(l.path)+".")
	if err != nil {
		return err
	}
	defer os.Remove(copied.Name()) // fails when all is well
	info, err := l.f.Stat()
	if err == nil {
		_, err = io.Copy(copied, io.NewSectionReader(l.f, 0, math.MaxInt64)) // also what others write meanwhile
	}
	if err == nil {
		err = copied.Chmod(info.Mode().Perm())
	}
	if err = errors.Join(err, copied.Close()); err != nil {
		return err
	}
	for i := Kept; i > 1; i-- {
		if err := os.Rename(aside(l.path, i-1), aside(l.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(copied.Name(), aside(l.path, 1)); err != nil {
		return err
	}
	// Cut off here, lines are in both files, and none is lost.
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	l.size, l.retry = 0, 0
	return nil
}

func aside(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

// Remove removes a log and what was set aside of it.
func Remove(path string) error {
	errs := []error{remove(path)}
	for i := range Kept {
		errs = append(errs, remove(aside(path, i+1)))
	}
	return errors.Join(errs...)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
