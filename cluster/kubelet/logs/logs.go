// Package logs writes what the API asks for of a container's log; internal/crilog reads it.
package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/internal/crilog"
)

// timestampFormat has a fixed width.
const timestampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// Options say which part of a log is wanted; the zero value is all of it so far.
type Options struct {
	// Log gets what is odd about a log; nil discards it.
	Log *slog.Logger
	// Tail is how many lines are wanted from the end; nil is all.
	Tail *int64
	// Limit is how many bytes are wanted at most; nil is all.
	Limit *int64
	// Since leaves out what is older.
	Since time.Time
	// Timestamps has each line begin with its time.
	Timestamps bool
	// Ended, if not nil, has the log followed until it is closed, when the container no longer runs.
	Ended <-chan struct{}
}

// OptionsOf returns what the API's options ask for at that time.
func OptionsOf(o *v1.PodLogOptions, now time.Time) Options {
	opts := Options{Tail: o.TailLines, Limit: o.LimitBytes, Timestamps: o.Timestamps}
	if o.SinceSeconds != nil {
		opts.Since = now.Add(-time.Duration(*o.SinceSeconds) * time.Second)
	}
	if o.SinceTime != nil {
		opts.Since = o.SinceTime.Time
	}
	return opts
}

// Flusher is a writer that holds back what it was given until Flush.
type Flusher interface{ Flush() error }

// Read writes the log at path to stdout and stderr, either of which may be nil if it is not wanted.
// Writers that are Flushers are flushed before Read waits. It returns nil at the end of the log,
// the writers' error if they fail, and ctx's error.
func Read(ctx context.Context, path string, opts Options, stdout, stderr io.Writer) error {
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	log := cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	out := &output{timestamps: opts.Timestamps, stdout: stdout, stderr: stderr, remain: math.MaxInt64, fresh: true}
	if opts.Limit != nil {
		out.remain = *opts.Limit
	}
	o := crilog.Options{
		Tail: -1, TailRecords: true, Since: opts.Since, Ended: opts.Ended, Idle: out.flush, Unfinished: true,
		Odd: func(err error) { log.Debug("odd line in a container's log", "err", err) },
	}
	if opts.Tail != nil {
		o.Tail = int(*opts.Tail)
	}
	// After an error nothing is flushed: what was sent to a client could not become an error.
	if err := crilog.Read(ctx, file, o, out.write); err != nil && !errors.Is(err, errLimit) {
		return err
	}
	return out.flush()
}

// errLimit ends reading when as much as was wanted has been written.
var errLimit = errors.New("limit reached")

// output writes what is wanted of lines.
type output struct {
	timestamps     bool
	stdout, stderr io.Writer
	remain         int64
	fresh          bool   // the next Line begins a line of the container's
	text           []byte // of the Line, to be written at once
}

func (o *output) write(l crilog.Line) error {
	w := o.stdout
	if l.Stream == crilog.Stderr {
		w = o.stderr
	}
	begins := o.fresh
	o.fresh = !l.Partial || len(l.Text) == 0
	if w == nil {
		return nil
	}
	o.text = o.text[:0]
	if begins && o.timestamps {
		o.text = append(l.Time.AppendFormat(o.text, timestampFormat), ' ')
	}
	o.text = append(o.text, l.Text...)
	if !l.Partial {
		o.text = append(o.text, '\n')
	}
	cut := int64(len(o.text)) >= o.remain
	n, err := w.Write(o.text[:min(int64(len(o.text)), o.remain)])
	o.remain -= int64(n)
	if err == nil && cut {
		return errLimit
	}
	return err
}

func (o *output) flush() error {
	for _, w := range []io.Writer{o.stdout, o.stderr} {
		if f, ok := w.(Flusher); ok {
			if err := f.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}
