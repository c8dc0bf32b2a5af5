package apiserver

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/cacher/progress"
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

// A list of what there is now waits for etcd to say how far the changes have come. With the etcd in
// this process, it does not wait for upstream's next time to ask.
func TestWatchCachesAskForProgressSoon(t *testing.T) {
	near, far := (&store{direct: func() *clientv3.Client { return nil }}).clock(), (&store{}).clock()
	for c, want := range map[roundClock]int{near: 200, far: 10} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int32
			requester := progress.NewConditionalProgressRequester(func(context.Context) error { asked.Add(1); return nil }, c, nil)
			stop := make(chan struct{})
			go requester.Run(stop)
			time.Sleep(time.Hour)
			if requester.Add(); asked.Load() != 0 {
				t.Errorf("asked %d times for no list", asked.Load())
			}
			time.Sleep(time.Second - time.Microsecond)
			if int(asked.Load()) != want {
				t.Errorf("asked %d times in a second, want %d", asked.Load(), want)
			}
			requester.Remove()
			close(stop)
		})
	}
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
