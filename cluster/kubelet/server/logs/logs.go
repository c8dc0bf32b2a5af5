// Package logs reads containers' log files in CRI's format and follows them.
//
//	2016-10-06T00:17:09.669794202Z stdout F a whole line
//	2016-10-06T00:17:10.113242941Z stderr P the first part of a line
//
// Memory is bounded whatever the lines are: what is longer than the buffer is passed on in parts. A
// file is followed by inotify. When it is rotated (renamed, and a new one made in its place), the
// old one is read to its end before the new one is started, so that no line is lost or told twice.
package logs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
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
	// Follow waits for more until the container no longer runs.
	Follow bool
	// Running says whether the container runs; it is asked when there is nothing to read, and
	// needed only with Follow.
	Running func(context.Context) (bool, error)
}

// OptionsOf returns what the API's options ask for at that time.
func OptionsOf(o *v1.PodLogOptions, now time.Time) Options {
	opts := Options{Tail: o.TailLines, Limit: o.LimitBytes, Timestamps: o.Timestamps, Follow: o.Follow}
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
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to open log file %q: %w", path, err)
	}
	defer func() { f.Close() }()
	lines := int64(math.MaxInt64)
	if opts.Tail != nil {
		start, err := tailStart(f, *opts.Tail)
		if err == nil {
			_, err = f.Seek(start, io.SeekStart)
		}
		if err != nil {
			return fmt.Errorf("failed to tail %d lines of log file %q: %w", *opts.Tail, path, err)
		}
		if !opts.Follow {
			lines = *opts.Tail
		}
	}
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	out := &output{opts: opts, stdout: stdout, stderr: stderr, remain: math.MaxInt64, fresh: true}
	if opts.Limit != nil {
		out.remain = *opts.Limit
	}
	in := &input{file: f}
	if !opts.Follow {
		return ignoreLimit(in.copy(ctx, out, lines, true))
	}
	w, err := watch(ctx, path, opts.Running)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		// Ask first and read afterwards: what a container wrote before it ended is in the file by
		// then.
		running, err := opts.Running(ctx)
		if err != nil {
			return err
		}
		next, err := w.successor(f)
		if err != nil {
			return err
		}
		if err := in.copy(ctx, out, lines, next != nil || !running); err != nil {
			return ignoreLimit(err)
		}
		switch {
		case next != nil:
			f.Close()
			f, in = next, &input{file: next}
			continue
		case !running:
			return nil
		}
		if err := out.flush(); err != nil {
			return err
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
}

// errLimit ends reading when as much as was wanted has been written.
var errLimit = errors.New("limit reached")

func ignoreLimit(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// input cuts a file into lines.
type input struct {
	file       *os.File
	buf        [64 << 10]byte
	start, end int
}

// next returns the next line or, if that does not fit the buffer, its next part. At the end of the
// file an unfinished line is kept for later, or returned if last.
func (in *input) next(last bool) ([]byte, error) {
	searched := in.start
	for {
		if i := bytes.IndexByte(in.buf[searched:in.end], '\n'); i >= 0 {
			line := in.buf[in.start : searched+i+1]
			in.start = searched + i + 1
			return line, nil
		}
		if in.start == 0 && in.end == len(in.buf) {
			in.start = in.end
			return in.buf[:in.end], nil
		}
		if in.start > 0 {
			in.end = copy(in.buf[:], in.buf[in.start:in.end])
			in.start = 0
		}
		searched = in.end
		n, err := in.file.Read(in.buf[in.end:])
		in.end += n
		if n > 0 {
			continue
		}
		if err == io.EOF && last && in.end > in.start {
			line := in.buf[in.start:in.end]
			in.start = in.end
			return line, nil
		}
		return nil, err
	}
}

// copy writes what there is to out, at most that many lines.
func (in *input) copy(ctx context.Context, out *output, lines int64, last bool) error {
	for lines > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk, err := in.next(last)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("failed to read log file %q: %w", in.file.Name(), err)
		}
		if err := out.write(chunk); err != nil {
			return errors.Join(err, out.flush())
		}
		if chunk[len(chunk)-1] == '\n' {
			lines--
		}
	}
	return out.flush()
}

// output takes log lines apart and writes what is wanted of them.
type output struct {
	opts           Options
	stdout, stderr io.Writer
	remain         int64
	// fresh says that the next message begins a line of the container's.
	fresh bool
	// inside says that the last chunk did not end its log line, which current is of.
	inside  bool
	current message
}

func (o *output) write(chunk []byte) error {
	if o.inside {
		o.inside = chunk[len(chunk)-1] != '\n'
		return o.content(o.current.tail(chunk), false)
	}
	o.inside = chunk[len(chunk)-1] != '\n'
	msg, content, err := parse(chunk)
	if err != nil {
		o.opts.Log.Debug("odd line in a container's log", "err", err)
		msg.skip = true
	}
	msg.skip = msg.skip || msg.time.Before(o.opts.Since)
	o.current = msg
	return o.content(msg.tail(content), o.fresh)
}

// content writes a message's content, or a part of it.
func (o *output) content(content []byte, begins bool) error {
	if o.current.skip {
		return nil
	}
	o.fresh = len(content) == 0 || content[len(content)-1] == '\n'
	w := o.stdout
	if o.current.stderr {
		w = o.stderr
	}
	if w == nil {
		return nil
	}
	if begins && o.opts.Timestamps {
		prefix := append(o.current.time.AppendFormat(make([]byte, 0, 40), timestampFormat), ' ')
		if err := o.put(w, prefix); err != nil {
			return err
		}
	}
	return o.put(w, content)
}

func (o *output) put(w io.Writer, data []byte) error {
	cut := int64(len(data)) >= o.remain
	if cut {
		data = data[:o.remain]
	}
	n, err := w.Write(data)
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

// message is what the head of a log line says of it.
type message struct {
	time    time.Time
	stderr  bool
	partial bool
	// skip says that the message is not wanted.
	skip bool
}

// tail drops the line feed that is the log's and not the container's.
func (m message) tail(content []byte) []byte {
	if m.partial {
		return bytes.TrimSuffix(content, []byte{'\n'})
	}
	return content
}

// parse takes the head off a log line.
func parse(line []byte) (msg message, content []byte, err error) {
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return msg, nil, errors.New("timestamp is not found")
	}
	if msg.time, err = time.Parse(time.RFC3339Nano, string(stamp)); err != nil {
		return msg, nil, errors.New("unexpected timestamp format")
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	switch string(stream) {
	case "stdout":
	case "stderr":
		msg.stderr = true
	default:
		return msg, nil, errors.New("unexpected stream type")
	}
	tags, content, found := bytes.Cut(rest, []byte{' '})
	if !ok || !found {
		return msg, nil, errors.New("log tag is not found")
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	msg.partial = string(first) == "P"
	return msg, content, nil
}

// tailStart is where the last n lines of the file begin.
func tailStart(f *os.File, n int64) (int64, error) {
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil || n <= 0 {
		return at, err
	}
	var buf [16 << 10]byte
	for at > 0 {
		size := min(at, int64(len(buf)))
		if _, err := f.ReadAt(buf[:size], at-size); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' {
				continue
			}
			if n == 0 {
				return at - size + i + 1, nil
			}
			n--
		}
		at -= size
	}
	return 0, nil
}
