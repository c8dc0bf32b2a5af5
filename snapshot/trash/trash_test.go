package trash

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A failed deletion is repeated, with growing pauses, until it succeeds.
func TestTrashTriesAgain(t *testing.T) {
	dir := t.TempDir()
	busy := filepath.Join(dir, "gone", "sub", "mount")
	if err := os.MkdirAll(busy, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", busy, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(busy, unix.MNT_DETACH) })
	synctest.Test(t, func(t *testing.T) {
		bin := New(dir, "fs", slog.New(slog.DiscardHandler))
		bin.Start()
		defer bin.Close()
		bin.Delete("gone")
		time.Sleep(10 * firstRetry)
		synctest.Wait()
		if _, err := os.Stat(busy); err != nil {
			t.Fatalf("deleted through a mount: %v", err)
		}
		if err := unix.Unmount(busy, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * firstRetry)
		synctest.Wait()
		if _, err := os.Stat(filepath.Join(dir, "gone")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("not tried again: %v", err)
		}
	})
}

func TestRemoveTreeDeletesManyEntriesAndFollowsNoLink(t *testing.T) {
	dir, precious := t.TempDir(), t.TempDir()
	write(t, filepath.Join(precious, "file"), "x")
	tree := filepath.Join(dir, "tree")
	for i := range 300 {
		sub := filepath.Join(tree, fmt.Sprint(i%3), "a", "b")
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(sub, fmt.Sprint(i)), "")
	}
	if err := os.Symlink(precious, filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(t.Context(), dir, "tree", "fs"); err != nil {
		t.Fatal(err)
	}
	if there(tree) || !there(filepath.Join(precious, "file")) {
		t.Error("the tree is left, or more is gone")
	}
	if err := removeTree(t.Context(), dir, "tree", "fs"); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestRemoveTreeReportsWhatItCannot(t *testing.T) {
	dir := t.TempDir()
	stuck := filepath.Join(dir, "tree", "a", "mnt")
	if err := os.MkdirAll(stuck, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tree", "file"), "")
	if err := unix.Mount("tmpfs", stuck, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(stuck, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := removeTree(t.Context(), dir, "tree", "fs"); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "tree") {
		t.Errorf("error %v", err)
	}
	if there(filepath.Join(dir, "tree", "file")) {
		t.Error("the rest is not deleted")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
