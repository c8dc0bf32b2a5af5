package crilog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options choose what is read of a log.
type Options struct {
	// Tail is the number of last lines; negative: all. A line counts once however many records it
	// has.
	Tail int
	// Since leaves out what is older.
	Since time.Time
	// Ended, if not nil, makes Read follow the log until it is closed; then it reads what is left
	// and returns.
	Ended <-chan struct{}
	// Idle, if not nil, is called before waiting for more: all that is there was handed on.
	Idle func() error
}

// Read hands the records of the log at path to sink, in order, until its end; with Ended, until the
// log's end after that is closed, over rotations. It returns ctx's error when that ends
// before, and sink's error as it is.
func Read(ctx context.Context, path string, o Options, sink func(Line) error) error {
	var changed <-chan struct{}
	if o.Ended != nil {
		// Before the file is looked at, or what happens between the two would be missed.
		w, err := watch(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer w.close()
		changed = w.changed
	}
	r, err := await(ctx, path, changed, o.Ended)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer func() { r.close() }()
	if o.Tail >= 0 {
		if err := r.skipTo(o.Tail, o.Since); err != nil {
			return err
		}
	}
	ended := o.Ended
	for {
		if err := r.drain(ctx, o.Since, sink); err != nil {
			return err
		}
		next, err := r.successor(path)
		if err != nil {
			return err
		}
		if next != nil {
			// The writer is in the new file by now, so what the old one has is all.
			if err := r.drain(ctx, o.Since, sink); err != nil {
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
			return nil
		}
		if o.Idle != nil {
			if err := o.Idle(); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ended:
			ended = nil // one more look at what came last
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await opens the log. If ended is set, it waits for a missing file until ended is closed: a
// rotation renames the old file before it makes the new one.
func await(ctx context.Context, path string, changed, ended <-chan struct{}) (*reader, error) {
	for {
		r, err := open(path)
		if ended == nil || !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
		select {
		case <-changed:
		case <-ended:
			ended = nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// drain hands on what is there.
func (r *reader) drain(ctx context.Context, since time.Time, sink func(Line) error) error {
	for ctx.Err() == nil {
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if l.Time.Before(since) {
			continue
		}
		if err := sink(l); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// successor opens the file that the writer went on with after this one; nil if it is still in this
// one.
func (r *reader) successor(path string) (*reader, error) {
	now, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // renamed away, and the new one is not there yet
	}
	if err != nil {
		return nil, err
	}
	mine, err := r.file.Stat()
	if err != nil || os.SameFile(now, mine) {
		return nil, err
	}
	next, err := open(between(mine, path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return next, err
}

// between is the oldest file that was set aside after mine, or path: a reader that was held up may
// have missed more than one rotation. Files that were packed since cannot be read in order any
// more.
func between(mine fs.FileInfo, path string) string {
	entries, _ := os.ReadDir(filepath.Dir(path))
	oldest, name := time.Time{}, path
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+".") || strings.HasSuffix(e.Name(), ".gz") || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		st, err := e.Info()
		if err == nil && !os.SameFile(st, mine) && st.ModTime().After(mine.ModTime()) && (name == path || st.ModTime().Before(oldest)) {
			oldest, name = st.ModTime(), filepath.Join(filepath.Dir(path), e.Name())
		}
	}
	return name
}
