package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

func TestLockTellsItsHolder(t *testing.T) {
	dir := t.TempDir()
	first, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockDir(dir)
	if !errors.Is(err, errRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("second lock: %v", err)
	}
	first.release()
	second, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	second.release()
}

// A daemon was killed while it started a program: the child has the lock for another moment.
func TestLockOfAKilledDaemon(t *testing.T) {
	dir := t.TempDir()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	left, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), fmt.Appendln(nil, gone.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(10*time.Millisecond, left.release)
	next, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	next.release()
}

// Two daemons with a state directory each were let on one root; the second took the
// first one's writable layers for leftovers, and deleted them.
func TestOneDaemonOnARoot(t *testing.T) {
	c := config.Config{Root: t.TempDir(), State: t.TempDir()}
	release, err := lockBoth(c)
	if err != nil {
		t.Fatal(err)
	}
	other := config.Config{Root: c.Root, State: t.TempDir()}
	if _, err := lockBoth(other); !errors.Is(err, errRunning) || !strings.Contains(err.Error(), c.Root) {
		t.Errorf("second daemon on the root: %v", err)
	}
	if l, err := lockDir(other.State); err != nil {
		t.Errorf("its state directory is left locked: %v", err)
	} else {
		l.release()
	}
	// A purge through another state directory, too, leaves the root alone.
	if err := purgeOwned(t.Context(), other, false, takeState, slog.New(slog.DiscardHandler)); !errors.Is(err, errRunning) {
		t.Errorf("purge: %v", err)
	}
	release()
	release, err = lockBoth(other)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestLockWithoutDirectory(t *testing.T) {
	if _, err := lockDir(filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestAwaitLock(t *testing.T) {
	dir := t.TempDir()
	first, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := awaitDir(late, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("taken: %v", err)
	}
	first.release()
	// The call that gave up may have got the lock just now, and keeps it while the
	// process lives: take another directory.
	dir = t.TempDir()
	if first, err = lockDir(dir); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		second, err := awaitDir(context.Background(), dir)
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

// The holder of the lock is this process: a purge that ends daemons would end the test.
func TestPurgeOfStoppedLeavesADaemonAlone(t *testing.T) {
	c := config.Config{State: t.TempDir(), Root: t.TempDir()}
	lock, err := lockDir(c.State)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.release()
	if err := purge(t.Context(), c, true, lockState, slog.New(slog.DiscardHandler)); !errors.Is(err, errRunning) {
		t.Errorf("error %v, want one that says that a daemon runs", err)
	}
	if _, err := os.Stat(filepath.Join(c.State, "lock")); err != nil {
		t.Errorf("the daemon's lock: %v", err)
	}
}

func TestEndDaemonSparesOtherProcesses(t *testing.T) {
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
