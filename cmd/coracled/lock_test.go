package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLockTellsItsHolder(t *testing.T) {
	dir := t.TempDir()
	first, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockState(dir)
	if !errors.Is(err, errRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second lock: %v", err)
	}
	first.release()
	second, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.release()
}

func TestLockWithoutDirectory(t *testing.T) {
	if _, err := lockState(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestAwaitLock(t *testing.T) {
	dir := t.TempDir()
	first, err := lockState(dir)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := awaitState(late, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("taken: %v", err)
	}
	first.release()
	// The call that gave up may have got the lock just now, and keeps it while the
	// process lives: take another directory.
	dir = t.TempDir()
	if first, err = lockState(dir); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := awaitState(context.Background(), dir)
		if err == nil {
			second.release()
		}
		got <- err
	}()
	first.release()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// A purge removes the lock's file while another waits for it: what the other gets is
// the lock of a name that is gone, and it must take the new one.
func TestLockOfARemovedFileIsNone(t *testing.T) {
	dir := t.TempDir()
	f, err := openLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if l, err := own(f); l != nil || err != nil {
		t.Errorf("%v, %v", l, err)
	}
}

func TestEndDaemonSparesStrangers(t *testing.T) {
	dir := t.TempDir()
	// The file says process 1, which does not have it open.
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endDaemon(dir); err == nil || !strings.Contains(err.Error(), "process 1 does not hold") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := endDaemon(dir); err == nil || !strings.Contains(err.Error(), "does not say") {
		t.Errorf("%v", err)
	}
}
