package snapshot

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOtherDriverTakesOver(t *testing.T) {
	s := startedWith(t, Config{Root: t.TempDir(), Driver: Overlay})
	layers := twoLayers(t, s)
	prepared(t, s, "c", layers...)
	_ = s.Close()
	other := New(Config{Root: s.root, Driver: Native, Log: slog.New(slog.DiscardHandler)})
	if err := other.Start(t.Context()); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "remove all containers first") {
		t.Fatalf("under a mounted snapshot: %v", err)
	}
	s = again(t, s)
	must(t, s.Remove(t.Context(), "c"))
	_ = s.Close()
	s = startedWith(t, Config{Root: s.root, Driver: Native})
	if all, _ := s.Layers(); len(all) != 0 {
		t.Errorf("layers with foreign markers: %v", all)
	}
	bad := New(Config{Root: t.TempDir(), Driver: "zfs"})
	if err := bad.Start(t.Context()); !errors.Is(err, ErrInvalid) {
		t.Errorf("unknown driver: %v", err)
	}
}

// Regression: a damaged file that names the driver had all layers dropped, and the snapshots of
// running containers with them; so had one that was lost, if the driver was native; a directory in
// its place kept the daemon from starting.
func TestDriverFileDamaged(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		write(t, filepath.Join(snap.Target, "mine"), "x")
		file := filepath.Join(s.root, driverFile)
		for what, damage := range map[string]func() error{
			"empty":       func() error { return os.Truncate(file, 0) },
			"zeros":       func() error { return os.WriteFile(file, []byte("\x00\x00\x00"), 0o600) },
			"another":     func() error { return os.WriteFile(file, []byte("zfs"), 0o600) },
			"gone":        func() error { return os.Remove(file) },
			"a directory": func() error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
		} {
			must(t, damage())
			s = again(t, s)
			if all, _ := s.Layers(); len(all) != 2 || len(s.List()) != 1 {
				t.Errorf("%s: layers %v, snapshots %v", what, all, s.List())
			}
			mountOf(t, snap.Target)
			if read(t, filepath.Join(snap.Target, "mine")) != "x" {
				t.Errorf("%s: the container's files are gone", what)
			}
			if got := read(t, file); got != string(s.driverName)+"\n" {
				t.Errorf("%s became %q", what, got)
			}
		}
	})
}
