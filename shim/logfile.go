package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// logFile is a container's log, written by the pumps of its two streams.
type logFile struct {
	place logPlace
	path  string // where that is; for messages, and to compare
	limit logLimit
	most  int64 // largest size of a file without a limit

	mu    sync.Mutex // held over each write and change of f: at most one write is unfinished
	begun time.Time  // when f was first written to

	current sync.Mutex // held to change f, or to read it without mu: a write that hangs holds mu
	f       *os.File
}

// logMark is a place in a log file: everything from offset on was not there before.
type logMark struct {
	dev, ino uint64
	offset   int64
}

// logPlace is where a log is: a name relative to the pod's log directory, which no link in it leads
// out of. Volumes may show log directories to containers, which could put a link to any of the
// host's directories in place of a container's own.
type logPlace struct{ dir, name string }

// placeOf finds the place of a log at path. An older daemon names no directory: then only the last
// component is not followed.
func placeOf(dir, path string) (logPlace, error) {
	if !filepath.IsAbs(path) {
		return logPlace{}, fmt.Errorf("%w: bad log path %q: it must be absolute", errInvalid, path)
	}
	if dir == "" {
		dir = filepath.Dir(path)
	}
	name, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(name) || name == "." {
		return logPlace{}, fmt.Errorf("%w: bad log path %q: it must be below the log directory %q", errInvalid, path, dir)
	}
	return logPlace{dir, name}, nil
}

func (p logPlace) path() string { return filepath.Join(p.dir, p.name) }

// at calls f with the log's path by way of its directory, which is open meanwhile.
func (p logPlace) at(f func(path string) error) error {
	root, err := unix.Open(p.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.bad("make its directory first", err)
	}
	defer unix.Close(root)
	dir, err := unix.Openat2(root, filepath.Dir(p.name), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return p.bad("its parent must be a directory below "+p.dir, err)
	}
	defer unix.Close(dir)
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(p.name)))
}

// bad words the error of a path that is no place for a log, unless descriptors or memory are
// lacking.
func (p logPlace) bad(what string, err error) error {
	if exhausted(err) {
		return fmt.Errorf("open log %s: %w", p.path(), err)
	}
	return fmt.Errorf("%w: bad log path %s: %s: %w", errInvalid, p.path(), what, err)
}

// open opens the log for appending; its directory must exist. The error is errInvalid if the place
// is none for a log.
func (p logPlace) open() (f *os.File, err error) {
	err = p.at(func(path string) error {
		// O_NONBLOCK so that a FIFO in the file's place cannot hang the shim.
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o640)
		if err != nil {
			return p.bad("cannot open it", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			return errors.Join(fmt.Errorf("%w: bad log path %s: not a regular file", errInvalid, p.path()), err)
		}
		_ = unix.SetNonblock(fd, false) // a regular file is never polled
		f = os.NewFile(uintptr(fd), p.path())
		return nil
	})
	return f, err
}

// openLog opens a container's log.
func openLog(place logPlace, limit logLimit) (*logFile, error) {
	f, err := place.open()
	if err != nil {
		return nil, err
	}
	return newLog(place, limit, f), nil
}

func newLog(place logPlace, limit logLimit, f *os.File) *logFile {
	return &logFile{place: place, path: place.path(), limit: limit, most: maxLogFile, f: f, begun: time.Now()}
}

// append writes records all or not at all. Before the write, mark records where it will start. A
// shim that finds the mark after a crash undoes the write with rollback. done withdraws the mark,
// written or not, before the other stream can write: a rollback would also cut off later records.
// append fails with errLogFull, and changes nothing, if the records do not fit into times files of
// the log's size.
func (l *logFile) append(records []byte, times int64, mark func(logMark) error, done func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := markOf(l.f)
	if err == nil && l.full(m.offset, len(records), times) {
		return errLogFull
	}
	defer done()
	if err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if err := mark(m); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if _, err := l.f.Write(records); err != nil {
		return errors.Join(fmt.Errorf("write log: %w", err), l.f.Truncate(m.offset))
	}
	return nil
}

// rollback undoes an unfinished write at m, if it was to this file.
func (l *logFile) rollback(m logMark) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, err := markOf(l.f)
	if err != nil {
		return fmt.Errorf("roll back log: %w", err)
	}
	if now.dev != m.dev || now.ino != m.ino || now.offset <= m.offset {
		return nil
	}
	if err := l.f.Truncate(m.offset); err != nil {
		return fmt.Errorf("roll back log: %w", err)
	}
	return nil
}

// reopen continues in the file that has the log's name now. It calls keep with that file as the
// current one, before the first write to it.
func (l *logFile) reopen(keep func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.prune(0); err != nil {
		return err
	}
	f, err := l.place.open()
	if err != nil {
		return err
	}
	if err := faultAt(faultLogReopened); err != nil {
		f.Close()
		return err
	}
	l.goOn(f, keep)
	return nil
}

func (l *logFile) goOn(f *os.File, keep func()) {
	old := l.f
	l.current.Lock()
	l.f = f
	l.current.Unlock()
	l.begun = time.Now()
	keep()
	old.Close()
}

// file returns the current file, even while a write to it hangs.
func (l *logFile) file() *os.File {
	l.current.Lock()
	defer l.current.Unlock()
	return l.f
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.Close()
}

func markOf(f *os.File) (logMark, error) {
	var st unix.Stat_t
	// Regular files are not in the poller: Fd changes nothing about them.
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return logMark{}, err
	}
	return logMark{dev: uint64(st.Dev), ino: st.Ino, offset: st.Size}, nil
}
