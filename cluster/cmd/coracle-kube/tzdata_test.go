package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CronJobs may name time zones on a machine that has no files of them.
func TestTimeZonesAreLinked(t *testing.T) {
	root, found := t.TempDir(), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread, which has another root now, ends with the goroutine
		found <- zoneWithin(root)
	}()
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// zoneWithin loads a zone where there are no files.
func zoneWithin(root string) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("chroot %s: %w", root, err)
	}
	if _, err := os.Stat("/usr/share/zoneinfo"); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the machine's files can be seen: %w", err)
	}
	_, err := time.LoadLocation("Asia/Kolkata")
	return err
}
