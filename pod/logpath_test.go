package pod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// A container whose log would be outside of its pod's log directory is refused, and leaves nothing.
func TestLogOutsideOfItsDirectory(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	pc := podConfig("p")
	pc.LogDirectory = t.TempDir()
	ok(t, os.Symlink(t.TempDir(), filepath.Join(pc.LogDirectory, "out")))
	podID := must[string](t)(m.Run(t.Context(), pc))
	c := containerConfig("run")
	c.LogPath = "out/new/0.log"
	if _, err := m.Create(t.Context(), podID, c); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("%v, want a refusal", err)
	}
	c.LogPath = "c/0.log"
	id := must[string](t)(m.Create(t.Context(), podID, c))
	ok(t, m.StartContainer(t.Context(), id))
	if got := b.proc(id).logDirectory; got != pc.LogDirectory {
		t.Errorf("the shim is told of log directory %q, want %q", got, pc.LogDirectory)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
