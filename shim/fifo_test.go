package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAwaitReader(t *testing.T) {
	fifo := func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "in")
		if err := makeFIFO(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	await := func(ctx context.Context, path string) <-chan error {
		done := make(chan error, 1)
		go func() { done <- awaitReader(ctx, path) }()
		return done
	}
	t.Run("there", func(t *testing.T) {
		path := fifo(t)
		r, err := openFIFO(path, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(r)
		if err := awaitReader(t.Context(), path); err != nil {
			t.Error(err)
		}
	})
	// Both open it without a look at the other: they meet.
	t.Run("comes", func(t *testing.T) {
		for range 100 {
			path := fifo(t)
			done := await(t.Context(), path)
			r, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			r.Close()
		}
	})
	t.Run("never comes", func(t *testing.T) {
		for range 100 {
			path := fifo(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := await(ctx, path)
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	t.Run("removed", func(t *testing.T) {
		path := fifo(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		done := await(ctx, path)
		os.Remove(path)
		if err := <-done; err == nil {
			t.Error("a reader of what is gone")
		}
	})
}

// Looking for a writer of a FIFO must not take a byte out.
func TestHasWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := makeFIFO(path); err != nil {
		t.Fatal(err)
	}
	in, err := openPolled(path, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if hasWriter(path) {
		t.Error("no writer is there")
	}
	out, err := openPolled(path, unix.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	if !hasWriter(path) {
		t.Error("a silent writer is there")
	}
	out.WriteString("ab")
	out.Close()
	if !hasWriter(path) {
		t.Error("data is there")
	}
	b := make([]byte, 10)
	if n, err := in.Read(b); err != nil || string(b[:n]) != "ab" {
		t.Errorf("left: %q, %v", b[:n], err)
	}
	if hasWriter(path) {
		t.Error("the writer is gone")
	}
}
