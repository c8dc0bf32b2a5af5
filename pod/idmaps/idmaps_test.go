package idmaps

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/podconfig"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestAsRoot: files that are made belong to the namespace's root, and later ones not.
func TestAsRoot(t *testing.T) {
	dir := t.TempDir()
	ok(t, unix.Chmod(dir, 0o777))
	ok(t, unix.Chmod(filepath.Dir(dir), 0o755)) // the way there
	mkdir := func(path string) uint32 {
		ok(t, unix.Mkdir(path, 0o755))
		var st unix.Stat_t
		ok(t, unix.Stat(path, &st))
		return st.Uid
	}
	ok(t, AsRoot(podconfig.IDMaps{
		UIDs: []podconfig.IDMap{{Container: 0, Host: 3000, Length: 1000}}, GIDs: []podconfig.IDMap{{Container: 0, Host: 3000, Length: 1000}},
	}, func() error {
		if got := mkdir(filepath.Join(dir, "inside")); got != 3000 {
			t.Errorf("belongs to %d", got)
		}
		return nil
	}))
	if got := mkdir(filepath.Join(dir, "outside")); got != 0 {
		t.Errorf("afterwards: belongs to %d", got)
	}
	ok(t, AsRoot(podconfig.IDMaps{}, func() error { return nil }))
}
