package target_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/target"
)

var me = target.Owner{UID: os.Geteuid(), GID: os.Getegid()}

// root is a root directory in one with other things in it, which nothing may change.
func root(t testing.TB) (dir string, fd int) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return dir, fd
}

func TestMake(t *testing.T) {
	for _, c := range []struct {
		name  string
		links map[string]string
		path  string
		dir   bool
		made  string
	}{
		{"nothing is there", nil, "/a/b/c", false, "a/b/c"},
		{"a directory", nil, "/a/b/c", true, "a/b/c"},
		{"a link to nothing", map[string]string{"resolv.conf": "/run/systemd/resolve/stub"}, "/resolv.conf", false, "run/systemd/resolve/stub"},
		{"a relative link", map[string]string{"etc": "x/y"}, "/etc/hosts", false, "x/y/hosts"},
		{"links that climb", map[string]string{"l": "../../../../outside/x"}, "/l", false, "outside/x"},
		{"dots", map[string]string{"l": "/a/./b/../c"}, "/l/../l", true, "a/c"},
		{"links to links", map[string]string{"a": "b", "b": "c", "c": "/d"}, "/a", false, "d"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, fd := root(t)
			for name, to := range c.links {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if err := target.Make(fd, c.path, c.dir, me); err != nil {
				t.Fatal(err)
			}
			st, err := os.Lstat(filepath.Join(dir, c.made))
			if err != nil || st.IsDir() != c.dir {
				t.Errorf("%v, %v", st, err)
			}
			if err := target.Make(fd, c.path, c.dir, me); err != nil {
				t.Errorf("once more: %v", err)
			}
			if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
				t.Errorf("made outside of the root: %v", left)
			}
		})
	}
}

func TestMakeFails(t *testing.T) {
	dir, fd := root(t)
	if err := errors.Join(os.Symlink("b", dir+"/a"), os.Symlink("a", dir+"/b"), os.WriteFile(dir+"/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := target.Make(fd, "/a", false, me); !errors.Is(err, unix.ELOOP) || err.Error() != "make /a: too many levels of symbolic links" {
		t.Errorf("a loop: %v", err)
	}
	if err := target.Make(fd, "/file/x", false, me); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

// FuzzMake follows links of any content: nothing may be made outside of the root.
func FuzzMake(f *testing.F) {
	f.Add("/x", "../..", "/y/..", true)
	f.Add("a/b", "/", "a/../../c", false)
	f.Fuzz(func(t *testing.T, to, second, path string, isDir bool) {
		dir, fd := root(t)
		_ = os.Symlink(to, filepath.Join(dir, "x"))
		_ = os.Symlink(second, filepath.Join(dir, "y"))
		_ = target.Make(fd, path, isDir, me)
		if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
			t.Errorf("made outside of the root: %v", left)
		}
	})
}
