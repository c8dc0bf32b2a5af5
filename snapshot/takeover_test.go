package snapshot

import (
	"errors"
	"log/slog"
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

// Regression: a damaged file that names the driver had all layers dropped, and the snapshots
// of running containers with them.
func TestDamagedDriverFile(t *testing.T) {
	s := started(t, t.TempDir())
	layers := twoLayers(t, s)
	snap := prepared(t, s, "c", layers...)
	for _, content := range []string{"", "\x00\x00\x00", "zfs"} {
		write(t, filepath.Join(s.root, driverFile), content)
		s = again(t, s)
		if all, _ := s.Layers(); len(all) != 2 || len(s.List()) != 1 {
			t.Errorf("%q: layers %v, snapshots %v", content, all, s.List())
		}
		mountOf(t, snap.Target)
		if got := read(t, filepath.Join(s.root, driverFile)); got != "overlay\n" {
			t.Errorf("%q became %q", content, got)
		}
	}
}
