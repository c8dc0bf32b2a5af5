package remover

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

var quiet = slog.New(slog.DiscardHandler)

// flaky fails a given number of times, and then deletes.
func flaky(r *Remover, failures int64) (calls *atomic.Int64) {
	calls = new(atomic.Int64)
	r.delete = func(string) error {
		if calls.Add(1) <= failures {
			return unix.EMFILE
		}
		return nil
	}
	return calls
}

func TestRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.MkdirAll(filepath.Join(dir, "b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := New(quiet)
	defer r.Close()
	r.Remove(dir)
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
	r.Remove(dir) // a missing path is a success
	if len(r.left) != 0 {
		t.Errorf("%d are tried again", len(r.left))
	}
}

func TestTriesAgainWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(quiet)
		calls := flaky(r, 5)
		r.Remove("/x")
		for n, wait := int64(1), firstPause; n <= 5; n, wait = n+1, 2*wait {
			time.Sleep(wait - time.Nanosecond)
			synctest.Wait()
			if calls.Load() != n {
				t.Fatalf("%d calls before pause %d is over", calls.Load(), n)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if calls.Load() != n+1 {
				t.Fatalf("%d calls after pause %d", calls.Load(), n)
			}
		}
		time.Sleep(time.Hour)
		if calls.Load() != 6 || len(r.left) != 0 {
			t.Errorf("%d calls, %d are tried again, after the deletion", calls.Load(), len(r.left))
		}
	})
}

func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(quiet)
		calls := flaky(r, 2*mostTries)
		r.Remove("/x")
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if calls.Load() != mostTries || len(r.left) != 0 {
			t.Errorf("%d calls, %d are tried again", calls.Load(), len(r.left))
		}
	})
}

// Nothing is tried after Close, not even what was in progress.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(quiet)
		var calls atomic.Int64
		var slow atomic.Bool
		r.delete = func(string) error {
			calls.Add(1)
			if slow.Load() {
				time.Sleep(time.Minute)
			}
			return unix.EMFILE
		}
		r.Remove("/x")
		slow.Store(true)
		r.mu.Lock()
		waiting := len(r.left)
		r.mu.Unlock()
		time.Sleep(firstPause)
		synctest.Wait() // a try is in progress
		slow.Store(false)
		r.Remove("/y") // waits
		begin := time.Now()
		r.Close()
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("close took %v, the try takes a minute", took)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if calls.Load() != 3 || waiting != 1 {
			t.Errorf("%d calls, %d waited", calls.Load(), waiting)
		}
	})
}
