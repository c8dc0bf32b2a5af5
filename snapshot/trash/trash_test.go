package snapshot

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
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
		bin := newTrash(dir, slog.New(slog.DiscardHandler))
		bin.start()
		defer bin.close()
		bin.delete("gone")
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
