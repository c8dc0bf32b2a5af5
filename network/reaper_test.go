package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// reaped records the calls of a reaper's function.
type reaped struct {
	mu     sync.Mutex
	keys   []string
	now    int
	most   int
	broken error
	hang   chan struct{} // calls with a name that starts with "hang" block until it is closed
}

func (w *reaped) work(_ context.Context, key string) error {
	w.mu.Lock()
	w.now++
	w.most = max(w.most, w.now)
	err := w.broken
	w.mu.Unlock()
	if strings.HasPrefix(key, "hang") {
		<-w.hang
	} else {
		time.Sleep(30 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now--
	if err == nil {
		w.keys = append(w.keys, key)
	}
	return err
}

func (w *reaped) done() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.keys
}

// Regression: one deletion that hung delayed all later ones, and Flush.
func TestReaperDoesNotWaitForItsSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &reaped{hang: make(chan struct{})}
		r := newReaper(quiet, w.work)
		const hanging, others = 20, 100
		for i := range hanging {
			r.add(fmt.Sprint("hang", i))
		}
		for i := range others {
			r.add(fmt.Sprint(i))
		}
		begin := time.Now()
		must(t, r.idle(t.Context()))
		// Three rounds of eight hang; the others take their normal time.
		if took := time.Since(begin); took > 3*reapLimit+time.Second || len(w.done()) != others {
			t.Errorf("%d are done after %v", len(w.done()), took)
		}
		// If no more calls hang, none waits.
		begin = time.Now()
		r.add("after")
		must(t, r.idle(t.Context()))
		if took := time.Since(begin); took > time.Second {
			t.Errorf("one more took %v", took)
		}
		close(w.hang)
		synctest.Wait()
		if n := len(w.done()); n != hanging+others+1 || r.hung != 0 || w.most > hanging+reapers {
			t.Errorf("%d are done, %d hang, %d at once", n, r.hung, w.most)
		}
		begin = time.Now()
		r.close()
		if took := time.Since(begin); took > 0 {
			t.Errorf("close took %v", took)
		}
	})
}

// The threads that hang in the kernel are limited.
func TestReaperBoundsWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &reaped{hang: make(chan struct{})}
		r := newReaper(quiet, w.work)
		for i := range 200 {
			r.add(fmt.Sprint("hang", i))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.most != mostHung+reapers {
			t.Errorf("%d hang", w.most)
		}
		// The kernel continues long after close, which waited for it.
		begin := time.Now()
		time.AfterFunc(time.Hour, func() { close(w.hang) })
		r.close()
		if took := time.Since(begin); took > 2*reapLimit {
			t.Errorf("close took %v", took)
		}
		<-w.hang
		synctest.Wait()
		if n := len(w.done()); n < mostHung+reapers || w.now != 0 {
			t.Errorf("%d are done, %d go on", n, w.now)
		}
	})
}

// Regression: a failed deletion was not repeated before the next start.
func TestReaperTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &reaped{broken: errors.New("no socket")}
		r := newReaper(quiet, w.work)
		r.add("a")
		must(t, r.idle(t.Context()))
		time.Sleep(10 * time.Minute)
		if len(w.done()) != 0 {
			t.Error("it was done")
		}
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		time.Sleep(lastRetry + time.Second)
		if n := len(w.done()); n != 1 {
			t.Errorf("it was done %d times", n)
		}
		w.mu.Lock()
		w.broken = errors.New("again")
		w.mu.Unlock()
		r.add("b")
		must(t, r.idle(t.Context()))
		r.close()
		if len(r.retries) != 0 {
			t.Error("it is tried after close")
		}
		r.add("c")
		must(t, r.idle(t.Context())) // nothing is accepted any more
	})
}

// A pod's link that cannot be deleted does not block another pod's addresses.
func TestTeardownDoesNotWaitForAnotherLink(t *testing.T) {
	m := started(t, testConfig(t))
	a, b := connect(t, m, "a"), connect(t, m, "b")
	l, _ := m.builtin.lease("a")
	must(t, m.builtin.retire(t.Context(), l))
	release, err := m.builtin.busy.Acquire(t.Context(), "a")
	must(t, err)
	defer release() // before started's checks
	m.builtin.reaper.add("a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := m.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) { // it does not wait for long
		t.Errorf("flush: %v", err)
	}
	must(t, m.Teardown(t.Context(), b.Pod))
	awaitLeases(t, m, 1)
	if l := m.Leases(); l[0].PodID != "a" || l[0].IPs[0] != a.ip4() {
		t.Errorf("leases %v", l)
	}
}

// A link that cannot be deleted, because the daemon has no descriptor left for a socket, is deleted
// later, and with it the record goes: the pod is gone by then, and no one calls Teardown for it
// again.
func TestTeardownWithoutDescriptors(t *testing.T) {
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	b := m.builtin
	tries := make(chan error)
	b.reaper.work = func(ctx context.Context, key string) error {
		err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max})
		if err == nil {
			err = b.reapOne(ctx, key)
		}
		err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		b.reaper.work = b.reapOne
		tries <- err
		return err
	}
	must(t, m.Teardown(t.Context(), p.Pod))
	if err := <-tries; !errors.Is(err, unix.EMFILE) {
		t.Fatalf("the first try: %v, want %v", err, unix.EMFILE)
	}
	awaitLeases(t, m, 0)
	if _, err := os.Lstat(b.records.path("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record: %v", err)
	}
}
