package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLockNamesItsHolder(t *testing.T) {
	dir := t.TempDir()
	first, err := LockState(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if pid, _, ok := LockHolder(dir); !ok || pid != os.Getpid() {
		t.Errorf("holder %d, %v; want %d", pid, ok, os.Getpid())
	}
	_, err = LockState(t.Context(), dir, time.Millisecond)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second lock: %v", err)
	}
	first.Release()
}

// The second process gets the lock when the first one ends, and not earlier.
func TestLockIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	first, err := LockState(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		// The waiting thread shows up in /proc/locks as "->".
		for !lockIsWaitedFor(t) {
			time.Sleep(time.Millisecond)
		}
		first.Release()
	}()
	second, err := LockState(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	<-released
	second.Release()
}

func lockIsWaitedFor(t *testing.T) bool {
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Error(err)
		return true
	}
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "-> FLOCK") && strings.Contains(line, " "+strconv.Itoa(os.Getpid())+" ") {
			return true
		}
	}
	return false
}

func TestLockEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	first, err := LockState(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LockState(ctx, dir, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A full disk, or another kind of file in the file's place, does not prevent a shim from starting,
// nor does it let two shims start.
func TestLockWithoutFile(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"full":      fillInodes,
		"fifo":      func(dir string) error { return unix.Mkfifo(filepath.Join(dir, LockName), 0o600) },
		"directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, LockName), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=8"); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}()
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			first, err := LockState(t.Context(), dir, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			defer first.Release()
			if _, err := LockState(t.Context(), dir, time.Millisecond); !errors.Is(err, ErrLocked) {
				t.Errorf("second lock: %v", err)
			}
		})
	}
}

func fillInodes(dir string) error {
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Without space for its content the lock file is empty, and still locked.
func TestLockOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "all"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal("the disk is not full:", err)
	}
	first, err := LockState(t.Context(), dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Release()
	if pid, _, ok := LockHolder(dir); ok {
		t.Errorf("holder %d on a full disk", pid)
	}
	if _, err := LockState(t.Context(), dir, time.Millisecond); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
}
