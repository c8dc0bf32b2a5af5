package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	expect := func(state string, want int) {
		t.Helper()
		if pid, err := holder(path); err != nil || pid != want {
			t.Errorf("%s: held by %d, %v, want %d", state, pid, err, want)
		}
	}
	expect("no file", 0)
	lock, err := hold(path)
	if err != nil {
		t.Fatal(err)
	}
	expect("held", os.Getpid())
	if _, err := hold(path); err == nil {
		t.Error("it was taken twice")
	}
	expect("held, after another try", os.Getpid())
	_ = lock.Close()
	expect("closed", 0)
	open, err := os.Open(path) // it still names this process
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	expect("open, not locked", 0)
	for _, content := range []string{"", "1\n", strconv.Itoa(1<<22) + "\n", "garbage"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		expect("content "+content, 0)
	}
}

// A process that only asks must not keep the lock from a process that is being started.
func TestAskingDoesNotLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = holder(path)
			}
		}
	}()
	for range 500 {
		lock, err := hold(path)
		if err != nil {
			t.Error(err)
			break
		}
		_ = lock.Close()
	}
	close(stop)
	<-stopped
}
