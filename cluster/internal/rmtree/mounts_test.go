package rmtree

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ownMounts gives the test a mount namespace of its own, which ends with the test's thread.
func ownMounts(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Fatal("a mount namespace is needed, hence root: ", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

func TestMountsAreFound(t *testing.T) {
	ownMounts(t)
	dir := filepath.Join(t.TempDir(), "pod")
	deep, file := filepath.Join(dir, "volumes/kind/name/mount"), filepath.Join(dir, "subpaths/0")
	for _, d := range []string{deep, filepath.Dir(file)} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("/proc", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := Unmounted(filepath.Join(dir, "none")); err != nil {
		t.Errorf("no directory: %v", err)
	}
	if err := Unmounted(dir); err != nil {
		t.Errorf("nothing mounted: %v", err)
	}
	for _, place := range []string{deep, file} {
		if err := unix.Mount(place, place, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if err := Unmounted(dir); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), place) {
			t.Errorf("a mount on %s: %v", place, err)
		}
		if err := unix.Unmount(place, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := Unmounted(dir); err != nil {
		t.Errorf("itself a mount: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Error(err)
	}
}
