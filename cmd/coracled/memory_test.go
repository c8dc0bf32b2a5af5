package main

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsFreedOnceAfterABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := 0
		m := newMemory(func() { freed++ })
		defer m.stop()
		for range 10 {
			time.Sleep(quiet - 1)
			m.worked()
		}
		if synctest.Wait(); freed != 0 {
			t.Errorf("freed %d times during the burst", freed)
		}
		time.Sleep(100 * quiet)
		if synctest.Wait(); freed != 1 {
			t.Errorf("freed %d times after the burst", freed)
		}
		m.worked()
		time.Sleep(quiet)
		if synctest.Wait(); freed != 2 {
			t.Errorf("freed %d times after the next", freed)
		}
	})
}
