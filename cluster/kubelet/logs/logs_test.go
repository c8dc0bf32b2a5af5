package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const sample = "2026-01-01T00:00:01.5Z stdout F one\n" +
	"2026-01-01T00:00:02Z stderr F two\n" +
	"2026-01-01T00:00:03Z stdout P thr\n" +
	"2026-01-01T00:00:04Z stdout F ee\n" +
	"2026-01-01T00:00:05+01:00 stdout F:x four\n"

func TestRead(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for _, c := range []struct {
		name, log   string
		opts        Options
		out, errOut string
	}{
		{name: "all", log: sample, out: "one\nthree\nfour\n", errOut: "two\n"},
		{name: "empty", log: ""},
		{
			name: "timestamps", log: sample, opts: Options{Timestamps: true},
			out:    "2026-01-01T00:00:01.500000000Z one\n2026-01-01T00:00:03.000000000Z three\n2026-01-01T00:00:05.000000000+01:00 four\n",
			errOut: "2026-01-01T00:00:02.000000000Z two\n",
		},
		{name: "tail", log: sample, opts: Options{Tail: ptr.To[int64](2)}, out: "ee\nfour\n"},
		{name: "tail more than there is", log: sample, opts: Options{Tail: ptr.To[int64](99)}, out: "one\nthree\nfour\n", errOut: "two\n"},
		{name: "tail nothing", log: sample, opts: Options{Tail: ptr.To[int64](0)}},
		{name: "since", log: sample, opts: Options{Since: time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC)}, out: "three\n", errOut: "two\n"},
		{name: "limit", log: sample, opts: Options{Limit: ptr.To[int64](6)}, out: "one\n", errOut: "tw"},
		{
			name: "limit and timestamps", log: sample, opts: Options{Limit: ptr.To[int64](33), Timestamps: true},
			out: "2026-01-01T00:00:01.500000000Z on",
		},
		{name: "limit of nothing", log: sample, opts: Options{Limit: ptr.To[int64](0)}},
		{
			name: "odd lines", log: "garbage\n\n2026-01-01T00:00:01Z\n2026-01-01T00:00:01Z stdin F x\n2026-01-01T00:00:01Z stdout F fine\n",
			out: "fine\n",
		},
		{name: "unfinished line", log: sample + "2026-01-01T00:00:06Z stdout F en", out: "one\nthree\nfour\nen", errOut: "two\n"},
		{name: "lines longer than the buffer", log: "2026-01-01T00:00:01Z stdout F " + long + "\n2026-01-01T00:00:01Z stdout P " + long +
			"\n2026-01-01T00:00:01Z stdout F end\n", out: long + "\n" + long + "end\n"},
		{name: "odd line longer than the buffer", log: long + "\n2026-01-01T00:00:01Z stdout F end\n", out: "end\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := os.WriteFile(path, []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errOut bytes.Buffer
			if err := Read(t.Context(), path, c.opts, &out, &errOut); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.out || errOut.String() != c.errOut {
				t.Errorf("got %.300q and %q\nwant %.300q and %q", out.String(), errOut.String(), c.out, c.errOut)
			}
		})
	}
}

func TestReadOnlyOneStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	if err := Read(t.Context(), path, Options{Limit: ptr.To[int64](3)}, nil, &errOut); err != nil || errOut.String() != "two" {
		t.Errorf("%q %v", errOut.String(), err)
	}
}

func TestOptionsOf(t *testing.T) {
	now := time.Unix(1000, 0)
	if o := OptionsOf(&v1.PodLogOptions{
		SinceSeconds: ptr.To[int64](60), TailLines: ptr.To[int64](5),
		Timestamps: true,
	}, now); o.Since != time.Unix(940, 0) || *o.Tail != 5 || !o.Timestamps {
		t.Error(o)
	}
	at := metav1.NewTime(time.Unix(7, 0))
	if o := OptionsOf(&v1.PodLogOptions{SinceTime: &at}, now); !o.Since.Equal(at.Time) {
		t.Error(o)
	}
}

// writer is a container's log writer, as a runtime that is told to reopen it behaves.
type writer struct {
	t    *testing.T
	path string
	file *os.File
	line int
}

func (w *writer) open() {
	w.t.Helper()
	var err error
	if w.file, err = os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) write(lines int) {
	for range lines {
		w.line++
		fmt.Fprintf(w.file, "2026-01-01T00:00:01Z stdout F line %d\n", w.line)
	}
}

func TestFollowOverRotations(t *testing.T) {
	w := &writer{t: t, path: filepath.Join(t.TempDir(), "0.log")}
	w.open()
	w.write(3)
	ended := make(chan struct{})
	reader, pipe := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), w.path, Options{Ended: ended}, pipe, pipe)
		pipe.Close()
	}()
	seen := 0
	expect := func(upTo int) {
		t.Helper()
		for seen < upTo {
			seen++
			var word string
			var n int
			if _, err := fmt.Fscanf(reader, "%s %d\n", &word, &n); err != nil || word != "line" || n != seen {
				t.Fatalf("got %q %d %v, want line %d", word, n, err, seen)
			}
		}
	}
	expect(3)
	for range 3 {
		w.write(2)
		expect(w.line)
		// The writer keeps writing to the renamed file until it has opened the new one.
		if err := os.Rename(w.path, fmt.Sprintf("%s.%d", w.path, w.line)); err != nil {
			t.Fatal(err)
		}
		w.write(2)
		old := w.file
		w.open()
		fresh := w.file
		w.file = old
		w.write(2) // still to the old one
		w.file = fresh
		old.Close()
		w.write(2)
		expect(w.line)
	}
	w.write(1)
	close(ended)
	expect(w.line)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	w := &writer{t: t, path: filepath.Join(t.TempDir(), "0.log")}
	w.open()
	w.write(1)
	ctx, cancel := context.WithCancel(t.Context())
	reader, pipe := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Read(ctx, w.path, Options{Ended: make(chan struct{})}, pipe, nil)
	}()
	var buf [100]byte
	if _, err := reader.Read(buf[:]); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFollowTellsTheReadersError(t *testing.T) {
	w := &writer{t: t, path: filepath.Join(t.TempDir(), "0.log")}
	w.open()
	w.write(1)
	reader, pipe := io.Pipe()
	reader.CloseWithError(os.ErrClosed)
	err := Read(t.Context(), w.path, Options{Ended: make(chan struct{})}, pipe, nil)
	if !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func TestFollowEndsAtTheLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	opts := Options{Ended: make(chan struct{}), Limit: ptr.To[int64](7)}
	if err := Read(t.Context(), path, opts, &out, nil); err != nil || out.String() != "one\nthr" {
		t.Errorf("%q %v", out.String(), err)
	}
}
