package apiserver

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRoundTimersGoOffTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123 * time.Millisecond)
		var c roundClock
		for _, d := range []time.Duration{750 * time.Millisecond, time.Second, 1250 * time.Millisecond, 15 * time.Second} {
			timer := c.NewTimer(d)
			for range 3 {
				begun := time.Now()
				at := <-timer.C()
				if at.Nanosecond() != 0 || at.Sub(begun) < d || at.Sub(begun) > d+time.Second {
					t.Errorf("a timer of %v went off at %v, after %v", d, at, at.Sub(begun))
				}
				time.Sleep(10 * time.Millisecond)
				timer.Reset(d)
			}
			timer.Stop()
		}
		for _, d := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond} {
			begun := time.Now()
			<-c.NewTimer(d).C()
			if got := time.Since(begun); got != d {
				t.Errorf("a timer of %v took %v", d, got)
			}
		}
	})
}

func TestHurriedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c hurriedClock
		c.hurry() // nothing waits
		for _, hurried := range []bool{false, true, false} {
			begun, over := time.Now(), c.After(time.Hour)
			want := time.Hour
			if hurried {
				want = time.Minute
				time.AfterFunc(want, c.hurry)
			}
			<-over
			if got := time.Since(begun); got != want {
				t.Errorf("hurried %v: waited %v, want %v", hurried, got, want)
			}
			c.hurry() // too late
		}
	})
}
