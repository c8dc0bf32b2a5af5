// Package logfile keeps a program's log within bounds: a file that is set aside when it has grown,
// as FILE.1, and the ones before as FILE.2 and so on.
//
// What is set aside is copied and the file is then truncated, by the process that writes it and
// between two lines. So none of its lines is lost, and the file stays the same one: other processes
// that have it as their standard error (a child, one that is started again, a panic's trace) need
// not be told. Only what such a process writes in the moment between copy and truncation is lost.
//
// If a file cannot be set aside twice, for example because the disk is full, its contents are
// dropped. A log in memory is smaller (Stderr).
//
// The loggers in use elsewhere rename the file, which others then go on writing to, and cut it
// anywhere.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"sync"
	"syscall"
)

// Sizes of a log.
const (
	// Limit is the size in bytes from which on a file is set aside.
	Limit = 10 << 20
	// Kept is how many files that were set aside are kept.
	Kept = 3
)

// Sizes of a log in memory (tmpfs).
const (
	memoryLimit = 4 << 20
	memoryKept  = 1
)

// File is a log. It is safe for concurrent use.
type File struct {
	path  string
	limit int64
	kept  int

	mu    sync.Mutex
	f     *os.File
	retry int64 // after a failure: the size at which to try again; 0: no failure
}

// Open returns the log at path, which is made if there is none, for appending.
func Open(path string) (*File, error) { return open(path, Limit, Kept) }

func open(path string, limit int64, kept int) (*File, error) {
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
	l := &File{path: path, limit: limit, kept: kept, f: f}
	l.bound() // a panic may have added its trace after our last line
	return l, nil
}

// Write appends p. It never fails: programs must not stop because the disk of their log is full.
// What cannot be written is dropped.
func (l *File) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.f.Write(p)
	if len(p) > 0 && p[len(p)-1] == '\n' {
		l.bound()
	}
	return len(p), nil
}

// bound sets the file aside if it is too large. If that fails twice, for example because the file
// system is full, it empties the file: new lines are more useful than old ones.
func (l *File) bound() {
	size := l.size() // other processes write too
	if size < max(l.limit, l.retry) {
		return
	}
	err := l.setAside()
	if err != nil && l.retry > 0 {
		if terr := l.f.Truncate(0); terr == nil {
			l.retry = 0
			fmt.Fprintf(l.f, "%d bytes of log were dropped because they could not be set aside: %v\n", size, err)
			return
		}
	}
	l.retry = 0
	if err != nil {
		fmt.Fprintf(l.f, "the log could not be set aside: %v\n", err)
		l.retry = l.size() + l.limit
	}
}

func (l *File) size() int64 {
	info, err := l.f.Stat()
	if err != nil {
		return 0 // closed
	}
	return info.Size()
}

// Close closes the file; what is written after that is dropped.
func (l *File) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}

func (l *File) setAside() error {
	info, err := l.f.Stat()
	if err != nil {
		return err
	}
	// Always use the same name: a process that is killed here leaves one file, and the next reuses
	// it.
	copied, err := os.OpenFile(aside(l.path, 0), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer os.Remove(copied.Name()) // fails when all is well
	if l.kept == 1 {               // make room first: both are in memory
		err = remove(aside(l.path, 1))
	}
	if err == nil {
		_, err = io.Copy(copied, io.NewSectionReader(l.f, 0, math.MaxInt64)) // also what others write meanwhile
	}
	if err == nil {
		err = copied.Chmod(info.Mode().Perm())
	}
	if err = errors.Join(err, copied.Close()); err != nil {
		return err
	}
	for i := l.kept; i > 1; i-- {
		if err := os.Rename(aside(l.path, i-1), aside(l.path, i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(copied.Name(), aside(l.path, 1)); err != nil {
		return err
	}
	// Cut off here, lines are in both files, and none is lost.
	return l.f.Truncate(0)
}

func aside(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }

// Remove removes a log and what was set aside of it.
func Remove(path string) error {
	errs := []error{remove(path), remove(aside(path, 0))}
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
