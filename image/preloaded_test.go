package image

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Regression: an image lost its archive, and was collected, when the archive could not be looked at
// for a moment.
func TestWhatPinsAnImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "images.tar")
	must(t, os.WriteFile(file, []byte("archive"), 0o600))
	p, err := preloadedFrom(file)
	must(t, err)
	pins := func(when string, want bool) {
		t.Helper()
		if got := p.pins(); got != want {
			t.Errorf("%s: the archive pins its image: %t", when, got)
		}
	}
	pins("as it was", true)
	must(t, os.Remove(file))
	pins("it is gone", false)
	must(t, os.Symlink(file, file)) // cannot be followed
	pins("it cannot be looked at", true)
	must(t, os.Remove(file))
	must(t, os.WriteFile(file, []byte("another"), 0o600))
	must(t, os.Chtimes(file, time.Time{}, time.Unix(1, 0)))
	pins("it is another", false)
	if (preloaded{}).pins() {
		t.Error("no archive pins an image")
	}
}
