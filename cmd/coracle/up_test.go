package main

import (
	"context"
	"errors"
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
