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

// A daemon asks again and again how a shim and its containers are. That keeps nothing in memory, and
// has nothing collected.
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
