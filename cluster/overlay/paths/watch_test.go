package paths

import (
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Regression: a subscription that failed once, for want of memory perhaps, ended the following.
func TestFollowSubscribesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watch{log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), stop: make(chan struct{})}
		const failures = 12
		var channels []chan<- int
		var tries int
		var read []int
		subscribe := func(ch chan<- int, _ <-chan struct{}, _ func(error)) error {
			if tries++; len(channels) > 0 && tries <= 1+failures {
				return errors.New("no buffer space available")
			}
			channels = append(channels, ch)
			return nil
		}
		if err := follow(w, subscribe, func(i int) { read = append(read, i) }); err != nil {
			t.Fatal(err)
		}
		channels[0] <- 1
		began := time.Now()
		close(channels[0]) // notifications were lost
		<-w.changed
		if waited := time.Since(began); len(channels) != 2 || waited < time.Minute || waited > 5*time.Minute {
			t.Fatalf("%d subscriptions after %s", len(channels), waited)
		}
		if !w.altered.Load() {
			t.Error("nothing is told of what may have changed meanwhile")
		}
		channels[1] <- 2
		close(channels[1])
		<-w.changed
		channels[2] <- 3
		synctest.Wait()
		if !slices.Equal(read, []int{1, 2, 3}) {
			t.Errorf("read %v", read)
		}
		tries, channels = 0, channels[2:]
		close(channels[0])
		synctest.Wait() // it waits for its next try
		close(w.stop)
		w.running.Wait()
	})
}

// Regression: a subscription that lost notifications kept its socket until the watch ended.
func TestFollowEndsItsSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watch{log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), stop: make(chan struct{})}
		var open atomic.Int32
		tries := 0
		lose := make(chan struct{})
		subscribe := func(ch chan<- int, done <-chan struct{}, _ func(error)) error {
			if tries++; tries%2 == 0 {
				return errors.New("no buffer space available")
			}
			open.Add(1)
			go func() { // as netlink does
				<-done
				open.Add(-1)
			}()
			go func() {
				defer close(ch)
				select {
				case <-lose:
				case <-done:
				}
			}()
			return nil
		}
		if err := follow(w, subscribe, func(int) {}); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			lose <- struct{}{}
			<-w.changed
			synctest.Wait()
			if n := open.Load(); n != 1 {
				t.Fatalf("%d subscriptions are open", n)
			}
		}
		close(w.stop)
		w.running.Wait()
		synctest.Wait()
		if n := open.Load(); n != 0 {
			t.Errorf("%d subscriptions are open at the end", n)
		}
	})
}
