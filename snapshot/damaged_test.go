package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// damages are what can become of a record.
var damages = map[string]func(file string) error{
	"empty":       func(file string) error { return os.Truncate(file, 0) },
	"cut":         func(file string) error { return os.Truncate(file, 10) },
	"gone":        os.Remove,
	"a directory": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
}

// Regression: what a container ran from was deleted at the next start when the record of its layer was damaged.
func TestDriverKeepsLayersWithDamagedRecords(t *testing.T) {
	for what, damage := range damages {
		t.Run(what, func(t *testing.T) {
			eachDriver(t, func(t *testing.T, s *Store) {
				layers := twoLayers(t, s)
				snap := prepared(t, s, "c", layers...)
				before := looks(t, snap.Target)
				for _, d := range layers {
					must(t, damage(filepath.Join(s.layerDir(d), "layer.json")))
				}
				for range 2 {
					s = again(t, s)
					must(t, s.Flush(t.Context()))
					if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
						t.Fatalf("a running container lost its files: %s", diff)
					}
					if s.HasLayer(layers[0]) || s.HasLayer(layers[1]) {
						t.Error("a damaged layer is offered")
					}
				}
				for _, name := range []string{"lower", "upper"} { // pulled again
					_ = commitLayer(t, s, name, func(string) {})
				}
				must(t, s.Flush(t.Context()))
				if diff := cmp.Diff(before, looks(t, snap.Target)); diff != "" {
					t.Errorf("a running container lost its files to the repair: %s", diff)
				}
				must(t, s.Remove(t.Context(), "c"))
				s = again(t, s)
				if left, _ := os.ReadDir(s.quarantineDir()); len(left) != 0 {
					t.Errorf("quarantine still has %v", left)
				}
			})
		})
	}
}

// Regression: the week began when the layer was unpacked.
func TestQuarantineLastsFromWhenItBegins(t *testing.T) {
	s := started(t, t.TempDir())
	layers := commitLayers(t, s, 2)
	old := time.Now().Add(-2 * quarantineTime)
	for _, d := range layers {
		must(t, os.Chtimes(s.layerDir(d), old, old))
	}
	must(t, s.Quarantine(layers[0]))
	must(t, os.Truncate(filepath.Join(s.layerDir(layers[1]), "layer.json"), 0))
	s = restarted(t, s)
	left, err := os.ReadDir(s.quarantineDir())
	if err != nil || len(left) != 2 {
		t.Fatalf("quarantine has %v, %v", left, err)
	}
	for _, e := range left {
		must(t, os.Chtimes(filepath.Join(s.quarantineDir(), e.Name()), old, old))
	}
	s = restarted(t, s)
	if left, _ := os.ReadDir(s.quarantineDir()); len(left) != 0 {
		t.Errorf("after a week quarantine has %v", left)
	}
}
