package copyup_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/copyup"
)

func directory(t *testing.T) (string, int) {
	t.Helper()
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return dir, fd
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestCopy(t *testing.T) {
	from, fromFd := directory(t)
	to, toFd := directory(t)
	deep := filepath.Join(from, strings.Repeat("d/", 40))
	must(t,
		os.MkdirAll(deep, 0o755), os.WriteFile(filepath.Join(deep, "x"), []byte("deep"), 0o600),
		os.Symlink("/etc/shadow", filepath.Join(from, "link")), os.Chown(filepath.Join(from, "d"), 3, 4),
		unix.Mkfifo(filepath.Join(from, "pipe"), 0o640), unix.Mknod(filepath.Join(from, "null"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		os.WriteFile(filepath.Join(from, "suid"), []byte("s"), 0o755), os.Lchown(filepath.Join(from, "suid"), 7, 8),
		os.Chmod(filepath.Join(from, "suid"), os.ModeSetuid|0o755),
		unix.Setxattr(filepath.Join(from, "suid"), "trusted.boat", []byte("oar"), 0),
	)
	must(t, copyup.Copy(t.Context(), fromFd, toFd))
	if data, err := os.ReadFile(filepath.Join(to, strings.Repeat("d/", 40), "x")); err != nil || string(data) != "deep" {
		t.Errorf("deep file: %q, %v", data, err)
	}
	for _, name := range []string{"link", "pipe", "null", "suid", "d"} {
		var want, got unix.Stat_t
		must(t, unix.Lstat(filepath.Join(from, name), &want), unix.Lstat(filepath.Join(to, name), &got))
		if want.Mode != got.Mode || want.Uid != got.Uid || want.Gid != got.Gid || want.Rdev != got.Rdev || want.Mtim != got.Mtim {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	value := make([]byte, 9)
	if n, err := unix.Getxattr(filepath.Join(to, "suid"), "trusted.boat", value); err != nil || string(value[:n]) != "oar" {
		t.Errorf("extended attribute %q, %v", value, err)
	}
}

func TestCopyNamesTheEntry(t *testing.T) {
	from, fromFd := directory(t)
	to, toFd := directory(t)
	must(t, os.MkdirAll(filepath.Join(from, "a"), 0o755), os.WriteFile(filepath.Join(from, "a/b"), nil, 0o600),
		os.Mkdir(filepath.Join(to, "a"), 0o755))
	err := copyup.Copy(t.Context(), fromFd, toFd)
	if !errors.Is(err, fs.ErrExist) || err.Error() != "copy a: file exists" {
		t.Errorf("error %v", err)
	}
}

func TestCopyEndsWithItsContext(t *testing.T) {
	from, fromFd := directory(t)
	_, toFd := directory(t)
	must(t, os.WriteFile(filepath.Join(from, "x"), nil, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := copyup.Copy(ctx, fromFd, toFd); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestCopyAsAnotherUser stands in for a file system that belongs to a user namespace:
// a directory that is another user's.
func TestCopyAsAnotherUser(t *testing.T) {
	from, fromFd := directory(t)
	to, toFd := directory(t)
	must(t, os.WriteFile(filepath.Join(from, "x"), nil, 0o640), os.Lchown(to, 1234, 1235), os.Chmod(to, 0o700))
	must(t, copyup.Copy(t.Context(), fromFd, toFd))
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(to, "x"), &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o640 {
		t.Errorf("the copy is %d's, mode %o", st.Uid, st.Mode)
	}
}
