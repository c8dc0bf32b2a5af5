package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLowerDirs(t *testing.T) {
	for list, want := range map[string][]string{
		"/a": {"/a"}, "/a:/b:/c": {"/a", "/b", "/c"}, `/a\:b:/c\\d`: {"/a:b", `/c\d`}, "": {""}, `/a\`: {`/a\`},
	} {
		if got := lowerDirs(list); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
}

// An overlay of the host's directories is there before it is mounted anywhere.
func TestOverlayIsMadeOnTheHost(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"upper/one", "lower/one", "lower/two"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree := &Tree{
		Path: "overlay", Overlay: &Overlay{Options: []string{"lowerdir=" + dir + "/upper:" + dir + "/lower", "index=off"}},
		Set: unix.MOUNT_ATTR_RDONLY,
	}
	fd, err := tree.Open(Probe())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, want := range map[string]string{"one": "upper/one", "two": "lower/two"} {
		if got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	for _, bad := range [][]string{{"lowerdir=" + dir + "/none"}, {"nonsense=1", "lowerdir=" + dir}, {}} {
		if fd, err := (&Overlay{Options: bad}).open(); err == nil {
			_ = unix.Close(fd)
			t.Errorf("an overlay of %q", bad)
		}
	}
}
