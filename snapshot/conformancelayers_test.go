package snapshot

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/snapshot/space"

	"github.com/coracle-project/coracle/snapshot/driver"
)

func TestDriverKeepsLayersClean(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		a, b := prepared(t, s, "a", layers...), prepared(t, s, "b", layers...)
		before := looks(t, b.Target)
		write(t, filepath.Join(a.Target, "plain"), "changed")
		must(t, os.RemoveAll(filepath.Join(a.Target, "d")))
		write(t, filepath.Join(a.Target, "o", "more"), "x")
		if diff := cmp.Diff(before, looks(t, b.Target)); diff != "" {
			t.Errorf("another snapshot changed: %s", diff)
		}
		must(t, s.Remove(t.Context(), "a"))
		if diff := cmp.Diff(before, looks(t, prepared(t, s, "c", layers...).Target)); diff != "" {
			t.Errorf("a later snapshot differs: %s", diff)
		}
	})
}

// What a layer is said to take is what its directory does, to the byte.
func TestDriverLayerUsage(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		for _, d := range twoLayers(t, s) {
			u, err := s.LayerUsage(d)
			must(t, err)
			is, err := space.Measure(t.Context(), layerDir(s, d))
			if err != nil || is != u || u.Bytes == 0 {
				t.Errorf("said to take %+v, takes %+v, %v", u, is, err)
			}
		}
	})
}

func TestDriverView(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		w, err := s.NewLayer(t.Context())
		must(t, err)
		write(t, filepath.Join(w.Dir(), "f"), "x")
		f, err := w.Recipe()
		must(t, err)
		_, err = f.Write([]byte("how"))
		must(t, errors.Join(err, f.Close()))
		d := digest.FromString("d")
		must(t, w.Commit(t.Context(), d))
		v, err := s.OpenLayer(t.Context(), d)
		must(t, err)
		if read(t, filepath.Join(v.Dir(), "f")) != "x" {
			t.Error("wrong file")
		}
		r, err := v.Recipe()
		must(t, err)
		how, err := io.ReadAll(r)
		if must(t, errors.Join(err, r.Close())); string(how) != "how" {
			t.Errorf("recipe %q", how)
		}
		if err := s.RemoveLayer(t.Context(), d); !errors.Is(err, ErrLayerInUse) {
			t.Errorf("removed under a reader: %v", err)
		}
		must(t, errors.Join(v.Close(), v.Close(), s.RemoveLayer(t.Context(), d)))
		if _, err := s.OpenLayer(t.Context(), d); !errors.Is(err, ErrLayerMissing) {
			t.Errorf("open after removal: %v", err)
		}
	})
}

func TestDriverQuarantine(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		layers := twoLayers(t, s)
		snap := prepared(t, s, "c", layers...)
		before := looks(t, snap.Target)
		must(t, s.Quarantine(layers[1]))
		if s.HasLayer(layers[1]) {
			t.Error("the layer is still offered")
		}
		if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
			t.Errorf("a running container lost its files: %s", diff)
		}
		if left, _ := os.ReadDir(quarantineDir(s)); len(left) != 1 {
			t.Errorf("quarantine has %v", left)
		}
		// Regression: the damaged files were deleted beneath the container as soon as the
		// layer was whole again.
		_ = commitLayer(t, s, "upper", func(string) {})
		must(t, s.Flush(t.Context()))
		s = again(t, s)
		must(t, s.Flush(t.Context()))
		if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
			t.Errorf("a running container lost its files to the repair: %s", diff)
		}
		must(t, s.Remove(t.Context(), "c"))
		s = again(t, s)
		must(t, s.RemoveLayer(t.Context(), layers[1]))
		if left, _ := os.ReadDir(quarantineDir(s)); len(left) != 0 {
			t.Errorf("quarantine still has %v", left)
		}
	})
}

// Regression: a damaged image was an error like any other, and so was never repaired.
func TestDamagedErofs(t *testing.T) {
	s := startedWith(t, Config{Root: t.TempDir(), Driver: EROFS})
	layers := twoLayers(t, s)
	for i, at := range []int64{1024, 1536} { // the superblock's magic, and what its checksum is of
		image, err := os.OpenFile(filepath.Join(layerDir(s, layers[i]), driver.ImageFile), os.O_WRONLY, 0)
		must(t, err)
		_, err = image.WriteAt(bytes.Repeat([]byte{0xa5}, 256), at)
		must(t, errors.Join(err, image.Close()))
		if _, err := s.OpenLayer(t.Context(), layers[i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("damaged at %d: %v", at, err)
		}
	}
}

func TestManyLayers(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		snap := prepared(t, s, "c", commitLayers(t, s, 300)...)
		if read(t, filepath.Join(snap.Target, "top")) != "299" || read(t, filepath.Join(snap.Target, "0")) != "0" {
			t.Error("wrong layers")
		}
	})
}
