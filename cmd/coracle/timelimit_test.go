package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l, cancel := withTimeLimit(t.Context(), time.Minute)
		defer cancel()
		child, stop := context.WithCancel(l)
		defer stop()
		time.Sleep(20 * time.Second)
		resume, again := l.pause(), l.pause()
		if left := l.remaining(); left != 40*time.Second {
			t.Errorf("in a pause %v are left", left)
		}
		if _, ok := l.Deadline(); ok {
			t.Error("it has a deadline while it pauses")
		}
		time.Sleep(time.Hour)
		resume()
		resume() // once more is nothing
		time.Sleep(time.Hour)
		if err := child.Err(); err != nil {
			t.Errorf("the pauses count: %v", err)
		}
		again()
		<-child.Done()
		if err := child.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the child ends with %v", err)
		}
		if took := time.Since(began); took != 2*time.Hour+time.Minute {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestTimeLimitEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		l, cancel := withTimeLimit(ctx, time.Minute)
		defer cancel()
		resume := l.pause()
		interrupt()
		<-l.Done()
		resume()
		if err := l.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Hour) // the clock does not go on
		if err := l.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("later: %v", err)
		}
	})
}
