package join

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestSecondCallJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[int]
		var runs atomic.Int32
		release := make(chan struct{})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				v, err := g.Do(t.Context(), "k", func(context.Context) (int, error) {
					runs.Add(1)
					<-release
					return 7, nil
				})
				if v != 7 || err != nil {
					t.Errorf("got %d, %v", v, err)
				}
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("work ran %d times, want once", n)
		}
	})
}

func TestWorkOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group[string]
		release := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			_, err := g.Do(ctx, "k", func(ctx context.Context) (string, error) {
				<-release
				return "done", ctx.Err()
			})
			first <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Fatalf("first caller: got %v, want Canceled", err)
		}
		second := make(chan string, 1)
		go func() {
			v, err := g.Do(t.Context(), "k", func(context.Context) (string, error) { return "again", nil })
			if err != nil {
				t.Errorf("second caller: %v", err)
			}
			second <- v
		}()
		synctest.Wait()
		close(release)
		if v := <-second; v != "done" {
			t.Fatalf("second caller got %q, want the first call's result", v)
		}
	})
}

func TestPanicBecomesAnError(t *testing.T) {
	var g Group[int]
	_, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { panic("boom") })
	if err == nil || !strings.Contains(err.Error(), "boom") {
		t.Fatalf("got %v", err)
	}
	if v, err := g.Do(t.Context(), "k", func(context.Context) (int, error) { return 1, nil }); v != 1 || err != nil {
		t.Fatalf("after a panic: got %d, %v", v, err)
	}
}
