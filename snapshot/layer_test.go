package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/snapshot/space"

	"github.com/coracle-project/coracle/snapshot/layer"
)

func TestLayerLife(t *testing.T) {
	s := started(t, t.TempDir())
	d := commitLayer(t, s, "layer", func(dir string) { write(t, filepath.Join(dir, "f"), "x") })
	for range 2 {
		if !s.HasLayer(d) {
			t.Error("the layer is not there")
		}
		u, err := s.LayerUsage(d)
		if err != nil || u.Inodes != 4 { // its directory, layer.json, fs, f
			t.Errorf("usage %+v, %v", u, err)
		}
		if is, err := space.Measure(t.Context(), layerDir(s, d)); err != nil || is != u {
			t.Errorf("usage is said to be %+v, and is %+v, %v", u, is, err)
		}
		if all, err := s.Layers(); err != nil || len(all) != 1 || all[0] != d {
			t.Errorf("layers %v, %v", all, err)
		}
		s = restarted(t, s)
	}
	for range 2 {
		if err := s.RemoveLayer(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
	if s.HasLayer(d) || exists(layerDir(s, d)) {
		t.Error("the layer is still there")
	}
	if _, err := s.LayerUsage(d); !errors.Is(err, ErrLayerMissing) {
		t.Errorf("usage: %v", err)
	}
}

func TestRemoveLayerInUse(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	prepared(t, s, "c", layers...)
	for range 2 {
		for _, d := range layers {
			if err := s.RemoveLayer(t.Context(), d); !errors.Is(err, ErrLayerInUse) || !s.HasLayer(d) {
				t.Errorf("error %v", err)
			}
		}
		s = restarted(t, s)
	}
	if err := s.Remove(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	for _, d := range layers {
		if err := s.RemoveLayer(t.Context(), d); err != nil {
			t.Error(err)
		}
	}
}

// Regression: nothing told that a layer was free whose removal had been refused, so
// it stayed until the next start.
func TestFreedTellsOfLayersThatWereToGo(t *testing.T) {
	told := 0
	root := t.TempDir()
	s := startedWith(t, Config{Root: root, Freed: func() { told++ }})
	layers := commitLayers(t, s, 2)
	prepared(t, s, "a", layers...)
	prepared(t, s, "b", layers...)
	if err := s.RemoveLayer(t.Context(), layers[0]); !errors.Is(err, ErrLayerInUse) {
		t.Fatal(err)
	}
	for i, id := range []string{"a", "b", "b"} {
		if err := s.Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if want := min(i, 1); told != want {
			t.Errorf("after removing %s: told %d times, want %d", id, told, want)
		}
	}
	prepared(t, s, "c", layers...) // the layers must stay
	if err := s.Remove(t.Context(), "c"); err != nil || told != 1 {
		t.Errorf("told %d times, %v", told, err)
	}
}

func TestCommitLosesTheRace(t *testing.T) {
	s := started(t, t.TempDir())
	d := digest.FromString("same")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			w, err := s.NewLayer(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			write(t, filepath.Join(w.Dir(), "f"), "x")
			if err := w.Commit(t.Context(), d); err != nil {
				t.Error(err)
			}
			if err := w.Abort(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.stagingDir()); len(left) > 0 {
		t.Errorf("staging has %v", left)
	}
	if read(t, filepath.Join(layerDir(s, d), "fs", "f")) != "x" {
		t.Error("the layer is not whole")
	}
}

func TestAbortAndBadCommit(t *testing.T) {
	s := started(t, t.TempDir())
	w, err := s.NewLayer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []digest.Digest{"", "sha256:", "sha256:../../../../tmp/x", digest.SHA512.FromString("x")} {
		if err := w.Commit(t.Context(), d); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: error %v", d, err)
		}
		if err := s.RemoveLayer(t.Context(), d); !errors.Is(err, ErrInvalid) {
			t.Errorf("remove %q: error %v", d, err)
		}
	}
	for range 2 {
		if err := w.Abort(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Commit(t.Context(), digest.FromString("x")); err == nil {
		t.Error("Commit after Abort succeeds")
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exists(w.Dir()) {
		t.Error("the staged layer is left")
	}
}

func TestStartTakesWhatIsNotWholeOutOfUse(t *testing.T) {
	s := started(t, t.TempDir())
	good := commitLayer(t, s, "good", func(string) {})
	if _, err := s.NewLayer(t.Context()); err != nil { // being unpacked when the crash comes
		t.Fatal(err)
	}
	no := digest.FromString("no record")
	other := digest.FromString("record of another")
	for d, record := range map[digest.Digest]string{
		no: "", other: `{"version":1,"diffID":"` + good.String() + `"}`, digest.FromString("cut"): "{",
	} {
		if err := os.MkdirAll(filepath.Join(layerDir(s, d), "fs"), 0o755); err != nil {
			t.Fatal(err)
		}
		if record != "" {
			write(t, filepath.Join(layerDir(s, d), "layer.json"), record)
		}
	}
	if err := os.Mkdir(filepath.Join(layer.Top(s.root), "unrelated"), 0o755); err != nil {
		t.Fatal(err)
	}
	s = restarted(t, s)
	if all, _ := s.Layers(); len(all) != 1 || all[0] != good {
		t.Errorf("layers %v", all)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(layer.Top(s.root)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if aside, _ := os.ReadDir(quarantineDir(s)); len(aside) != 3 {
		t.Errorf("quarantine has %v", aside)
	}
	if left, _ := os.ReadDir(s.stagingDir()); len(left) != 0 {
		t.Errorf("left in staging: %v", left)
	}
}
