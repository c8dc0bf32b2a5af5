package main

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsFreedOnceAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var freed atomic.Int32
		m := newMemory(func() { freed.Add(1) })
		defer m.stop()
		for range 10 {
			time.Sleep(quiet - 1)
			m.worked()
		}
		if synctest.Wait(); freed.Load() != 0 {
			t.Errorf("freed %d times during the burst", freed.Load())
		}
		time.Sleep(100 * quiet)
		if synctest.Wait(); freed.Load() != 1 {
			t.Errorf("freed %d times after the burst", freed.Load())
		}
		m.worked()
		time.Sleep(quiet)
		if synctest.Wait(); freed.Load() != 2 {
			t.Errorf("freed %d times after the next", freed.Load())
		}
	})
}
