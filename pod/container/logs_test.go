package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/pod/podtest"
)

// TestLogDirectoriesFollowNoLinks: a pod that can write to log directories (a hostPath volume of
// /var/log) puts a link in place of a container's directory, and the host's files are left alone.
func TestLogDirectoriesFollowNoLinks(t *testing.T) {
	logs, outside := t.TempDir(), t.TempDir()
	podtest.OK(t, os.Symlink(outside, filepath.Join(logs, "absolute")))
	podtest.OK(t, os.Symlink("../"+filepath.Base(outside), filepath.Join(logs, "relative")))
	podtest.OK(t, os.Mkdir(filepath.Join(logs, "real"), 0o755))
	podtest.OK(t, os.Symlink("real", filepath.Join(logs, "inside")))
	for _, link := range []string{"absolute", "relative"} {
		if err := makeLogDirectory(logs, link+"/new/0.log"); err == nil {
			t.Errorf("%s: no refusal", link)
		}
		if left := podtest.Must[[]os.DirEntry](t)(os.ReadDir(outside)); len(left) != 0 {
			t.Errorf("%s: made %v on the host", link, left)
		}
		// Where links are followed, the attack makes a directory there.
		podtest.OK(t, os.MkdirAll(filepath.Join(logs, "absolute", "new"), 0o755))
		if _, err := os.Stat(filepath.Join(outside, "new")); err != nil {
			t.Errorf("control: %v", err)
		}
		podtest.OK(t, os.Remove(filepath.Join(outside, "new")))
	}
	podtest.OK(t, makeLogDirectory(logs, "inside/new/0.log"))
	if _, err := os.Stat(filepath.Join(logs, "real", "new")); err != nil {
		t.Errorf("a link that stays inside: %v", err)
	}
}
