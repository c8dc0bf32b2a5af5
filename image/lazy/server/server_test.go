package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/toc"
)

// Who waits for a layer is not told that it has gone when it is the process that ends.
func TestAwaitOverTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, slog.New(slog.DiscardHandler))
		d := digest.FromString("layer")
		x := &shown{Layer: lazy.Layer{DiffID: d}, whole: make(chan struct{}), done: make(chan struct{})}
		s.layers["key"] = x
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := make(chan error, 1)
		go func() { got <- s.Await(ctx, d) }()
		s.Close()
		x.wrong = context.Canceled
		close(x.whole)
		synctest.Wait()
		select {
		case err := <-got:
			t.Errorf("it was told %v", err)
			return
		default:
		}
		cancel() // the connection breaks
		if err := <-got; errors.Is(err, lazy.ErrNotShown) {
			t.Error(err)
		}
	})
}

// Regression: a layer that cannot be gone on with, since its unpacked table of contents cannot be
// read, left its directory open.
func TestAdoptLeavesNothingOpen(t *testing.T) {
	for name, table := range map[string]string{"no table": "", "another table": "{}"} {
		dir := t.TempDir()
		if table != "" {
			if err := os.WriteFile(filepath.Join(dir, toc.TableName), []byte(table), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l := lazy.Layer{
			DiffID: digest.FromString("layer"), TOC: digest.FromString("table"), Domain: "registry.example", Path: "app",
			Dir: t.TempDir(), Timeout: time.Hour,
		}
		data, err := json.Marshal(record{Layer: l, Unpacked: dir, End: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := New(nil, slog.New(slog.DiscardHandler)).Adopt("key", data, nil); err == nil {
			t.Errorf("%s: adopted", name)
		}
		for _, fd := range descriptors(t) {
			if fd == dir {
				t.Errorf("%s: the directory is open", name)
			}
		}
	}
}

// descriptors are the files that this process has open.
func descriptors(t *testing.T) (paths []string) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if path, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil { // or it is the one of this reading
			paths = append(paths, path)
		}
	}
	return paths
}
