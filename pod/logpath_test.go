package pod

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// TestLogDirectoriesFollowNoLinks: a pod that can write to log directories (a hostPath volume of
// /var/log) puts a link in place of a container's directory, and the host's files are left alone.
func TestLogDirectoriesFollowNoLinks(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	pc := podConfig("p")
	pc.LogDirectory = t.TempDir()
	outside := t.TempDir()
	ok(t, os.Symlink(outside, filepath.Join(pc.LogDirectory, "absolute")))
	ok(t, os.Symlink("../"+filepath.Base(outside), filepath.Join(pc.LogDirectory, "relative")))
	ok(t, os.Mkdir(filepath.Join(pc.LogDirectory, "real"), 0o755))
	ok(t, os.Symlink("real", filepath.Join(pc.LogDirectory, "inside")))
	podID := must[string](t)(m.Run(ctx, pc))
	for _, link := range []string{"absolute", "relative"} {
		c := containerConfig("run")
		c.LogPath = link + "/new/0.log"
		if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v, want a refusal", link, err)
		}
		if left := must[[]os.DirEntry](t)(os.ReadDir(outside)); len(left) != 0 {
			t.Errorf("%s: made %v on the host", link, left)
		}
		// Where links are followed, the attack makes a directory there.
		ok(t, os.MkdirAll(filepath.Join(pc.LogDirectory, "absolute", "new"), 0o755))
		if _, err := os.Stat(filepath.Join(outside, "new")); err != nil {
			t.Errorf("control: %v", err)
		}
		ok(t, os.Remove(filepath.Join(outside, "new")))
	}
	c := containerConfig("run")
	c.LogPath = "inside/new/0.log"
	id := must[string](t)(m.Create(ctx, podID, c))
	if _, err := os.Stat(filepath.Join(pc.LogDirectory, "real", "new")); err != nil {
		t.Errorf("a link that stays inside: %v", err)
	}
	ok(t, m.StartContainer(ctx, id))
	if got := b.proc(id).logDirectory; got != pc.LogDirectory {
		t.Errorf("the shim is told of log directory %q, want %q", got, pc.LogDirectory)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}
