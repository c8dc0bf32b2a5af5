package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsFreedOnceAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed, dropped atomic.Int32
		m := newMemory(func() { freed.Add(1) }, func() { dropped.Add(1) })
		defer m.stop()
		time.Sleep(started)
		if synctest.Wait(); freed.Load() != 1 || dropped.Load() != 1 {
			t.Errorf("freed %d times after the start, and pages were dropped %d times", freed.Load(), dropped.Load())
		}
		freed.Store(0)
		dropped.Store(0)
		for range 10 {
			time.Sleep(quiet - 1)
			m.worked()
		}
		if synctest.Wait(); freed.Load() != 0 {
			t.Errorf("freed %d times during the burst", freed.Load())
		}
		time.Sleep(quiet)
		if synctest.Wait(); freed.Load() != 1 || dropped.Load() != 0 {
			t.Errorf("freed %d times after the burst, and pages were dropped %d times", freed.Load(), dropped.Load())
		}
		time.Sleep(100 * rest)
		if synctest.Wait(); freed.Load() != 1 || dropped.Load() != 1 {
			t.Errorf("freed %d times at rest, and pages were dropped %d times", freed.Load(), dropped.Load())
		}
		m.worked()
		time.Sleep(rest)
		if synctest.Wait(); freed.Load() != 2 || dropped.Load() != 2 {
			t.Errorf("freed %d times after the next, and pages were dropped %d times", freed.Load(), dropped.Load())
		}
	})
}
