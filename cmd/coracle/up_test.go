package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A program that ends is noticed though another program listens where it should, and never answers.
func TestAwaitIsNotHeldUp(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		cmd := exec.Command("true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err := await(ctx, "it", log, cmd, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || !strings.Contains(err.Error(), "it ended as soon as it had been started") || time.Since(began) > time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// An up and a down at the same time must not leave a cluster without its runtime: one waits for the
// other.
func TestExclusive(t *testing.T) {
	p := place{root: t.TempDir()}
	release, err := p.exclusive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.exclusive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while it is taken: %v", err)
		}
	})
	release()
	release()
	again, err := p.exclusive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// Regression: an up that had waited for a 'down --purge' held the lock of a directory that was
// gone, and a third one that of the new directory.
func TestExclusiveAfterAPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := place{root: filepath.Join(t.TempDir(), "root"), state: filepath.Join(t.TempDir(), "state")}
		taken := make(chan func())
		take := func() {
			release, err := p.makeExclusive(t.Context(), p.state)
			if err != nil {
				t.Error(err)
				release = func() {}
			}
			taken <- release
		}
		go take()
		purge := <-taken
		go take()
		synctest.Wait() // it waits for the lock of the directory that is removed now
		if err := errors.Join(os.Remove(p.root), os.Remove(p.state)); err != nil {
			t.Fatal(err)
		}
		purge()
		release := <-taken
		for _, dir := range []string{p.root, p.state} {
			if _, err := os.Stat(dir); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.exclusive(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third one, while the place is taken: %v", err)
		}
		// A down goes on without the lock if there is nothing left.
		gone := make(chan error, 1)
		go func() {
			_, err := p.exclusive(t.Context())
			gone <- err
		}()
		synctest.Wait()
		if err := os.Remove(p.root); err != nil {
			t.Fatal(err)
		}
		release()
		if err := <-gone; !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a down after the purge: %v", err)
		}
	})
}

// Who lost the lock to another waits for that one, and no longer than it holds the lock.
func TestOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lost := errors.New("lost")
	lock, err := hold(path)
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	late := func(context.Context) error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	if err := orOther(t.Context(), lost, path, "it", path, late); err != nil {
		t.Errorf("another answered, late: %v", err)
	}
	ends := func(context.Context) error {
		_ = lock.Close()
		return errors.New("never")
	}
	if err := orOther(t.Context(), lost, path, "it", path, ends); !errors.Is(err, lost) {
		t.Errorf("another ended: %v", err)
	}
	if err := orOther(t.Context(), nil, path, "it", path, nil); err != nil {
		t.Errorf("nothing went wrong: %v", err)
	}
}

// Regression: an up in the moment when a supervisor that was killed still had its lock waited for
// that one until its time was over. An up that has started none sees that the lock is free.
func TestHolderEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := hold(path)
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	ended, err := awaitHolder(t.Context(), path, "it", path, func(context.Context) error {
		tries++
		_ = lock.Close()
		return errors.New("refused")
	})
	if !ended || err != nil || tries != 1 {
		t.Errorf("ended %t, %v, after %d tries", ended, err, tries)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if lock, err = hold(path); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	ended, err = awaitHolder(ctx, path, "it", path, func(context.Context) error {
		cancel()
		return errors.New("refused")
	})
	if ended || err == nil || !strings.Contains(err.Error(), "it does not answer: refused") {
		t.Errorf("nothing answered in time: ended %t, %v", ended, err)
	}
}

// Regression: a coracled with another --state, which has no lock here, was taken for one that has
// ended.
func TestCoracledOfAnotherState(t *testing.T) {
	u := &upRun{place: place{root: t.TempDir(), state: t.TempDir()}}
	ended, err := u.awaitOther(t.Context(), func(context.Context) error { return nil })
	if ended || err != nil {
		t.Errorf("it answers: ended %t, %v", ended, err)
	}
	ended, err = u.awaitOther(t.Context(), func(context.Context) error { return errors.New("refused") })
	if !ended || err != nil {
		t.Errorf("nothing answers: ended %t, %v", ended, err)
	}
}
