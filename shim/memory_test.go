package shim

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// What the last activity leaves is cleaned up once, some time after it.
func TestAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done atomic.Int32
		a := afterwards{delay: time.Minute, do: func() { done.Add(1) }}
		defer a.stop()
		for range 10 {
			a.busy()
			time.Sleep(40 * time.Second)
		}
		if synctest.Wait(); done.Load() != 0 {
			t.Errorf("done %d times while busy", done.Load())
		}
		time.Sleep(time.Hour)
		if synctest.Wait(); done.Load() != 1 {
			t.Errorf("done %d times afterwards", done.Load())
		}
		a.busy()
		a.stop()
		a.busy()
		time.Sleep(time.Hour)
		if synctest.Wait(); done.Load() != 1 {
			t.Errorf("done %d times after the end", done.Load()-1)
		}
	})
}

// After the start it is done sooner, unless something happens then.
func TestFirstTimeAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			used  bool
			after time.Duration
		}{{false, time.Second}, {true, time.Minute + time.Second/2}} {
			var done atomic.Int32
			a := afterwards{first: time.Second, delay: time.Minute, do: func() { done.Add(1) }}
			a.busy()
			time.Sleep(time.Second / 2)
			if tc.used {
				a.busy()
			}
			time.Sleep(tc.after - time.Second/2 - 1)
			if synctest.Wait(); done.Load() != 0 {
				t.Errorf("used %v: done too early", tc.used)
			}
			time.Sleep(time.Nanosecond)
			if synctest.Wait(); done.Load() != 1 {
				t.Errorf("used %v: not done after %v", tc.used, tc.after)
			}
			a.stop()
		}
	})
}

// A daemon asks again and again how a shim and its containers are. That keeps nothing in memory,
// and has nothing collected.
func TestQuestionsAreNoActivity(t *testing.T) {
	s := New(Config{})
	call := func(method string) {
		_, _ = s.intercept(t.Context(), nil, &ttrpc.UnaryServerInfo{FullMethod: "/containerd.task.v3.Task/" + method},
			func(context.Context, func(any) error) (any, error) { return &task.ConnectResponse{}, nil })
	}
	defer s.garbage.stop()
	defer s.pages.stop()
	for method := range asking {
		call(method)
	}
	if s.garbage.timer != nil || s.pages.timer != nil {
		t.Error("a question was taken for activity")
	}
	call("Create")
	if s.garbage.timer == nil || s.pages.timer == nil {
		t.Error("a creation is no activity")
	}
}
