package reading

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// However many clients ask, an object is read once a second.
func TestOneReadingASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			r     Cache[int]
			reads int
			kept  = true
		)
		read := func(context.Context) (int, error) {
			reads++
			time.Sleep(10 * time.Millisecond)
			return reads, nil
		}
		get := func() Reading[int] {
			return must(t)(r.Get(t.Context(), "x", time.Second, func(string) bool { return kept }, read))
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { get() })
		}
		wg.Wait()
		if reads != 1 {
			t.Errorf("%d readings for a hundred at a time", reads)
		}
		time.Sleep(900 * time.Millisecond)
		if v := get(); v.Val != 1 || v.Before != nil {
			t.Errorf("before the second is over: %+v", v)
		}
		time.Sleep(time.Second)
		if v := get(); v.Val != 2 || v.Before == nil || v.Before.Val != 1 {
			t.Errorf("after it: %+v", v)
		}
		kept = false
		r.Forget("x")
		get()
		if _, known := r.Peek("x"); known {
			t.Error("a reading of something that is gone was kept")
		}
	})
}

// A caller that finds no young reading while another caller reads gets that reading, even if the
// read ends before the caller could join it.
func TestReadingThatWasMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			r     Cache[int]
			reads int
		)
		// What Get does once it has looked.
		renew := func() Reading[int] {
			return must(t)(r.renew(t.Context(), "x", time.Second, func(string) bool { return true },
				func(context.Context) (int, error) { reads++; return reads, nil }))
		}
		renew()
		if v := renew(); v.Val != 1 || reads != 1 {
			t.Errorf("read %d times, got %+v", reads, v)
		}
		time.Sleep(2 * time.Second)
		renew()
		if v := renew(); reads != 2 || v.Val != 2 || v.Before == nil || v.Before.Val != 1 {
			t.Errorf("later: read %d times, got %+v", reads, v)
		}
	})
}

// keep is called under the lock that Forget takes, so that nothing is kept after Forget.
func TestReadingOfTheRemoved(t *testing.T) {
	var r Cache[int]
	forgotten := make(chan struct{})
	keep := func(id string) bool {
		if r.mu.TryLock() {
			r.mu.Unlock()
			t.Error("asked without the lock")
		}
		go func() {
			defer close(forgotten)
			r.Forget(id)
		}()
		return true
	}
	must(t)(r.Get(t.Context(), "x", 0, keep, func(context.Context) (int, error) { return 1, nil }))
	<-forgotten
	if _, known := r.Peek("x"); known {
		t.Error("a reading of something that is gone was kept")
	}
}

func must(t *testing.T) func(Reading[int], error) Reading[int] {
	return func(r Reading[int], err error) Reading[int] {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}
