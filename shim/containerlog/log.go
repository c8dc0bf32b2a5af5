// Package containerlog carries the output of containers from their pipes into their logs, in CRI's
// format: nothing is lost and nothing is written twice, even if the process is killed at any
// instruction and another goes on. It bounds what that costs in CPU time, and it rotates a log
// before the log exceeds its Limit. Those attached to a container see its output, too.
//
//	pipe ──► Pump (stage) ──► Log ──► files
//	            └──► Fanout ──► FIFOs of those attached
//
// A container has a Pump for each stream. Both write to its Log, pay into its Rate, and take turns
// with those of all containers (Share).
//
//	place, _ := containerlog.PlaceOf(dir, path)
//	log, _ := containerlog.Open(place, containerlog.Limit{})
//	pump, _ := containerlog.OpenPump(containerlog.Config{Log: log, …})
//	_ = containerlog.Recover(log, keep, pump) // if an earlier process has used stage and log
//	pump.Start(nil, nil)
//	…                                         // the container has ended
//	pump.Drain()
//	pump.Stop()
//	log.Close()
package containerlog

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Log is a container's log, written by the pumps of its two streams.
type Log struct {
	place Place
	path  string // where that is; for messages, and to compare
	limit Limit
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

// Open opens a container's log.
func Open(place Place, limit Limit) (*Log, error) {
	f, err := place.open()
	if err != nil {
		return nil, err
	}
	return New(place, limit, f), nil
}

// New returns the log whose current file is f, which it owns from now on.
func New(place Place, limit Limit, f *os.File) *Log {
	return &Log{place: place, path: place.path(), limit: limit, most: maxLogFile, f: f, begun: time.Now()}
}

// append writes records all or not at all. Before the write, mark records where it will start. A
// shim that finds the mark after a crash undoes the write with rollback. done withdraws the mark,
// written or not, before the other stream can write: a rollback would also cut off later records.
// append fails with errLogFull, and changes nothing, if the records do not fit into times files of
// the log's size.
func (l *Log) append(records []byte, times int64, mark func(logMark) error, done func()) error {
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
func (l *Log) rollback(m logMark) error {
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

// Reopen continues in the file that has the log's name now. It calls keep with that file as the
// current one, before the first write to it.
func (l *Log) Reopen(keep func()) error {
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

func (l *Log) goOn(f *os.File, keep func()) {
	old := l.f
	l.current.Lock()
	l.f = f
	l.current.Unlock()
	l.begun = time.Now()
	keep()
	old.Close()
}

// File returns the current file, even while a write to it hangs.
func (l *Log) File() *os.File {
	l.current.Lock()
	defer l.current.Unlock()
	return l.f
}

// Close closes the current file, when no write to it is unfinished.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.f.Close()
}

// Discard closes the log, and removes it if nothing has been written to it.
func (l *Log) Discard() {
	if m, err := markOf(l.File()); err == nil && m.offset == 0 {
		_ = l.place.at(os.Remove)
	}
	l.Close()
}

func markOf(f *os.File) (logMark, error) {
	var st unix.Stat_t
	// Regular files are not in the poller: Fd changes nothing about them.
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return logMark{}, err
	}
	return logMark{dev: uint64(st.Dev), ino: st.Ino, offset: st.Size}, nil
}
