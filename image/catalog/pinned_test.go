package catalog

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Regression: an image lost its archive, and was collected, when the archive could not be looked at
// for a moment.
func TestWhatPinsAnImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	file := filepath.Join(dir, "images.tar")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(file, []byte("archive"), 0o600))
	p, err := ArchiveOf(file)
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
	must(t, os.RemoveAll(dir))
	must(t, os.WriteFile(dir, nil, 0o600))
	pins("its directory is a file now", false)
	if (Archive{}).pins() {
		t.Error("no archive pins an image")
	}
}
