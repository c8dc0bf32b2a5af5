package containerlog

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// spend takes turns until the end, each of which costs cost. It returns their number.
func spend(s *Share, cost time.Duration, end time.Time) (turns int) {
	t := newTurn()
	for time.Now().Before(end) && s.take(t, nil) {
		time.Sleep(cost)
		s.done(t, cost)
		turns++
	}
	return turns
}

// Pumps that are always busy get the share, no more, and all get the same.
func TestShareOfManyPumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pumps, cost, span = 8, 200 * time.Microsecond, 10 * time.Second
		s := NewShare()
		s.cpus = .25
		end := time.Now().Add(span)
		var all sync.WaitGroup
		var turns [pumps]int
		for i := range pumps {
			all.Go(func() { turns[i] = spend(s, cost, end) })
		}
		all.Wait()
		sum := 0
		for i, n := range turns {
			sum += n
			if want := int(span / 4 / cost / pumps); n < want*9/10 || n > want*11/10 {
				t.Errorf("pump %d had %d turns, want %d", i, n, want)
			}
		}
		if used := time.Duration(sum) * cost; used > span/4+2*shareSaved+pumps*cost {
			t.Errorf("%v of CPU time in %v", used, span)
		}
	})
}

// A pump that uses less than the share never waits.
func TestLightPumpDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShare()
		s.cpus = .25
		mine := newTurn()
		for range 1000 {
			time.Sleep(time.Millisecond)
			before := time.Now()
			if !s.take(mine, nil) || time.Since(before) > 0 {
				t.Fatalf("waited %v", time.Since(before))
			}
			s.done(mine, 200*time.Microsecond)
		}
	})
}

// A turn that never ends, because the log's file system hangs, does not delay other pumps.
func TestHungTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShare()
		s.cpus = .25
		if !s.take(newTurn(), nil) {
			t.Fatal("no turn")
		}
		if n := spend(s, time.Millisecond, time.Now().Add(time.Second)); n < 240 {
			t.Errorf("%d turns", n)
		}
	})
}

// A pump that is stopped while it waits gets no turn, and the next one does.
func TestStopWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShare()
		first := newTurn()
		s.take(first, nil)
		s.done(first, time.Second) // a debt
		stop, stopped, next := make(chan struct{}), make(chan bool), make(chan bool)
		go func() { stopped <- s.take(newTurn(), stop) }()
		synctest.Wait()
		go func() { next <- s.take(newTurn(), nil) }()
		synctest.Wait()
		close(stop)
		if <-stopped {
			t.Error("a stopped pump had its turn")
		}
		if !<-next {
			t.Error("no turn")
		}
		if len(s.waiting) != 0 {
			t.Errorf("%d wait", len(s.waiting))
		}
	})
}

func TestLogRate(t *testing.T) {
	for name, tt := range map[string]struct {
		bytes, records int // of one write
		perSecond      int // writes
	}{
		"empty lines": {43_000, 1000, logRateRecords / 1000},
		"long lines":  {128 << 10, 8, logRateBytes / (128 << 10)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r Rate
				if r.pause() > 0 {
					t.Error("pause before anything was written")
				}
				const seconds = 5
				began := time.Now()
				for range seconds * tt.perSecond {
					time.Sleep(r.pause())
					r.wrote(tt.bytes, tt.records)
				}
				time.Sleep(r.pause())
				if took := time.Since(began); took < (seconds*time.Second)-2*burst || took > (seconds*time.Second)+burst {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}
