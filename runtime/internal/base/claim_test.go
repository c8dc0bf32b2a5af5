package base

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/testkit/nofiles"
	"github.com/coracle-project/coracle/runtime"
)

// What processes left that were killed while they claimed or released a container is
// removed, takes no id and is not listed.
func TestRestsOfClaims(t *testing.T) {
	dir := t.TempDir()
	mine := fmt.Sprintf("%s%d-1", newPrefix, os.Getpid())
	dead := fmt.Sprintf("%s%d-1", newPrefix, math.MaxInt32)
	for _, d := range []string{mine, dead, gonePrefix + "one-1/one"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	rec := Record{Version: 1, ID: "one", Created: time.Now()}
	if err := rec.Write(filepath.Join(dir, mine)); err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := s.List(); err != nil || len(ids) != 0 {
		t.Errorf("list is %v, %v, want nothing", ids, err)
	}
	if got, want := names(t, dir), []string{mine}; !slices.Equal(got, want) {
		t.Errorf("after the list there are %q, want %q", got, want)
	}
	if err := s.Claim(&rec); err != nil {
		t.Fatal(err)
	}
	if err := s.Claim(&rec); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("a second claim: %v", err)
	}
	if got, want := names(t, dir), []string{"one", mine}; !slices.Equal(got, want) {
		t.Errorf("in the state directory are %q, want %q", got, want)
	}
	for range 2 {
		if err := s.Release(t.Context(), &rec); err != nil {
			t.Error(err)
		}
	}
	if got, want := names(t, dir), []string{mine}; !slices.Equal(got, want) {
		t.Errorf("after the release there are %q, want %q", got, want)
	}
}

// Regression: a process without descriptors could not delete a directory with files other than the
// record. The directory stayed until the next engine's first Create or List.
func TestReleaseWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	s, err := NewStore(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rec := Record{Version: 1, ID: "one", Created: time.Now()}
	if err := s.Claim(&rec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.ContainerDir("one"), "more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var released, there error
	nofiles.Run(t, func() {
		released = s.Release(t.Context(), &rec)
		_, there = os.Lstat(filepath.Join(dir, fmt.Sprintf("%sone-%d", gonePrefix, rec.Created.UnixNano())))
	})
	if released != nil || there != nil {
		t.Fatalf("released: %v; what is to be deleted later: %v", released, there)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for len(names(t, dir)) > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("left are %q", names(t, dir))
		}
	}
}

func names(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}
