package crilog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options choose what is read of a log, and how.
type Options struct {
	// Tail is the number of last lines; negative: all. A line counts once however many records it
	// has.
	Tail int
	// TailRecords has Tail count records, before any are left out, as the kubelet's API does.
	// Without Ended, no more than these are read.
	TailRecords bool
	// Since leaves out what is older.
	Since time.Time
	// Ended, if not nil, makes Read follow the log until it is closed; then it reads what is left
	// and returns.
	Ended <-chan struct{}
	// Idle, if not nil, is called before waiting for more: all that is there was handed on.
	Idle func() error
	// Odd, if not nil, receives the error of each malformed record, which is skipped. If nil, Read
	// returns that error.
	Odd func(error)
	// Unfinished also passes on a last record without its newline.
	Unfinished bool
}

// Read hands the records of the log at path to sink, in order, until its end; with Ended, until the
// log's end after that is closed, over rotations. It returns ctx's error if ctx ends first, and
// sink's error as it is.
func Read(ctx context.Context, path string, o Options, sink func(Line) error) error {
	if o.Ended == nil {
		return follow(ctx, path, &watcher{}, o, sink)
	}
	// Before the file is looked at, or what happens between the two would be missed.
	w, err := watch(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer w.close()
	return follow(ctx, path, w, o, sink)
}

// follow is Read with a watcher, which signals nothing if the log is not to be followed.
func follow(ctx context.Context, path string, w *watcher, o Options, sink func(Line) error) error {
	r, err := await(ctx, path, w, o.Ended)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer func() { r.close() }()
	d := drainer{Options: o, sink: sink, records: math.MaxInt}
	if err := d.skip(r); err != nil {
		return err
	}
	ended := o.Ended
	for {
		if err := d.drain(ctx, r, false); err != nil || d.records <= 0 {
			return err
		}
		next, err := r.successor(ctx, path)
		if err != nil {
			return err
		}
		if next != nil {
			// The writer is in the new file by now, so what the old one has is all.
			if err := d.drain(ctx, r, true); err != nil {
				next.close()
				return err
			}
			r.close()
			r = next
			continue
		}
		if again, err := r.truncated(); again || err != nil {
			if err != nil {
				return err
			}
			continue
		}
		if ended == nil {
			return d.drain(ctx, r, true)
		}
		if o.Idle != nil {
			if err := o.Idle(); err != nil {
				return err
			}
		}
		select {
		case <-w.changed:
		case <-ended:
			ended = nil // one more look at what came last
		case <-w.done:
			return fmt.Errorf("log: %w", w.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await opens the log. If ended is set, it waits for a missing file until ended is closed: a
// rotation renames the old file before it makes the new one.
func await(ctx context.Context, path string, w *watcher, ended <-chan struct{}) (*reader, error) {
	for {
		r, err := open(path)
		if ended == nil || !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
		select {
		case <-w.changed:
		case <-ended:
			ended = nil
		case <-w.done:
			return nil, w.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// drainer hands on what is in files.
type drainer struct {
	Options
	sink    func(Line) error
	records int // to be read yet
}

// skip goes to where Tail begins.
func (d *drainer) skip(r *reader) error {
	var at int64
	var err error
	switch {
	case d.Tail < 0:
		return nil
	case d.TailRecords:
		if d.Ended == nil {
			d.records = d.Tail
		}
		at, err = r.lastRecords(d.Tail)
	default:
		at, err = r.lastLines(d.Tail, d.Since, d.Odd)
	}
	if err != nil {
		return err
	}
	return r.seek(at)
}

// drain hands on what is there; last says that no more is expected.
func (d *drainer) drain(ctx context.Context, r *reader, last bool) error {
	for d.records > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := r.ended
		l, err := r.next(last && d.Unfinished)
		d.records -= r.ended - before
		if errors.Is(err, io.EOF) {
			return nil
		}
		if odd, is := errors.AsType[oddRecord](err); is && d.Odd != nil {
			d.Odd(odd)
			continue
		}
		if err != nil {
			return err
		}
		if l.Time.Before(d.Since) {
			continue
		}
		if err := d.sink(l); err != nil {
			return err
		}
	}
	return nil
}

// successor opens the file that the writer went on with after this one; nil if it may still be in
// this one: it writes to the old file until it has opened the new one.
func (r *reader) successor(ctx context.Context, path string) (*reader, error) {
	mine, err := r.file.Stat()
	if err != nil {
		return nil, err
	}
	for ctx.Err() == nil {
		now, err := os.Stat(path)
		missing := errors.Is(err, fs.ErrNotExist) // renamed away, and the new one is not there yet
		if err != nil && !missing || !missing && os.SameFile(now, mine) {
			return nil, err
		}
		name, next, err := setAside(mine, path)
		if err != nil {
			return nil, err
		}
		if next == nil {
			if missing || now.Size() == 0 {
				return nil, nil
			}
			name, next = path, now
		}
		// What has this name by now may be a later file: another rotation.
		if r, err := openSame(name, next); r != nil || err != nil {
			return r, err
		}
	}
	return nil, ctx.Err()
}

// openSame opens a file if it still is the one that was found under its name, and otherwise
// returns nil.
func openSame(name string, found fs.FileInfo) (*reader, error) {
	r, err := open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := r.file.Stat()
	if err != nil || !os.SameFile(st, found) {
		r.close()
		return nil, err
	}
	return r, nil
}

// setAside is the oldest file that was renamed away after mine; nil if there is none. A reader that
// was held up may have missed more than one rotation. Files that were packed since cannot be
// read in order any more. If two files were last written within one tick of the clock of file
// systems, their names tell which is older. The oldest is removed first, so if mine is gone, all
// others are younger.
func setAside(mine fs.FileInfo, path string) (name string, oldest fs.FileInfo, err error) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	entries, err := os.ReadDir(dir) // by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	var tied string // the first file as old as mine, of those before it
	var tie fs.FileInfo
	found := false // mine
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), base+".") || strings.HasSuffix(e.Name(), ".gz") || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		st, err := e.Info()
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		after := st.ModTime().Compare(mine.ModTime())
		switch {
		case os.SameFile(st, mine):
			found = true
		case after < 0:
		case after == 0 && !found:
			if tie == nil {
				tied, tie = filepath.Join(dir, e.Name()), st
			}
		case oldest == nil || st.ModTime().Before(oldest.ModTime()):
			name, oldest = filepath.Join(dir, e.Name()), st
		}
	}
	if tie != nil && !found {
		return tied, tie, nil
	}
	return name, oldest, nil
}
