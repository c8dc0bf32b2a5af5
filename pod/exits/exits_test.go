package exits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/shim/client"
)

// oneContainer is a shim that has one running container. What does not die goes on after SIGKILL;
// what is mute sends no event at its end.
type oneContainer struct {
	tracker    *Tracker
	undying    bool
	mute       bool
	diesAfter  time.Duration
	deleteFail error

	mu    sync.Mutex
	calls []string
	ended bool
	gone  bool
}

func (s *oneContainer) Kill(_ context.Context, r client.KillRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("kill %s/%s with %d, all: %t", r.PodID, r.ID, r.Signal, r.All))
	switch {
	case s.gone:
		return client.ErrNotFound
	case s.ended:
		return client.ErrNotRunning
	case s.undying:
		return nil
	}
	time.AfterFunc(s.diesAfter, func() {
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		if !s.mute {
			s.tracker.Happened(r.ID)
		}
	})
	return nil
}

func (s *oneContainer) Delete(_ context.Context, podID, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("delete %s/%s", podID, id))
	switch {
	case s.deleteFail != nil:
		return s.deleteFail
	case s.gone:
		return client.ErrNotFound
	case !s.ended:
		return client.ErrRunning
	}
	s.gone = true
	return nil
}

func newTracker(t *testing.T, s *oneContainer) *Tracker {
	l := life.New()
	t.Cleanup(l.End)
	s.tracker = New(s, l)
	return s.tracker
}

func TestEnd(t *testing.T) {
	const kill = "kill p/c with 9, all: true"
	for name, tc := range map[string]struct {
		shim *oneContainer
		want []string
	}{
		"it runs":                  {&oneContainer{}, []string{"delete p/c", kill, "delete p/c"}},
		"it has ended":             {&oneContainer{ended: true}, []string{"delete p/c"}},
		"the shim knows none":      {&oneContainer{gone: true}, []string{"delete p/c"}},
		"the shim tells of no end": {&oneContainer{mute: true, diesAfter: time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTracker(t, tc.shim)
				if err := x.End(t.Context(), "p", "c"); err != nil {
					t.Error(err)
				}
				synctest.Wait() // the event of its end may still be on its way
				if tc.want != nil && !slices.Equal(tc.shim.calls, tc.want) {
					t.Errorf("calls %q, want %q", tc.shim.calls, tc.want)
				}
				if !tc.shim.gone {
					t.Error("the shim still has it")
				}
				if len(x.waiting) > 0 {
					t.Errorf("kept for good: %v", x.waiting)
				}
			})
		})
	}
}

// A container that survives SIGKILL, as one that waits for a dead disk does, is not waited for
// longer than the caller wants.
func TestEndOfWhatDoesNotDie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &oneContainer{undying: true}
		x := newTracker(t, s)
		begin := time.Now()
		if err := x.EndLeftover(t.Context(), "p", "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begin); took != leftoverLimit {
			t.Errorf("gave up after %s, want %s", took, leftoverLimit)
		}
	})
}

// An error of the shim is no reason to kill, and is returned.
func TestEndFails(t *testing.T) {
	s := &oneContainer{deleteFail: errors.New("disk on fire")}
	x := newTracker(t, s)
	if err := x.End(t.Context(), "p", "c"); !errors.Is(err, s.deleteFail) {
		t.Errorf("got %v", err)
	}
	if want := []string{"delete p/c"}; !slices.Equal(s.calls, want) {
		t.Errorf("calls %q, want %q", s.calls, want)
	}
}

// All who wait for an end are told of it, also those who come after it.
func TestOf(t *testing.T) {
	x := newTracker(t, &oneContainer{})
	over := false
	asked := func() bool { return over }
	first, second, other := x.Of("c", asked), x.Of("c", asked), x.Of("d", asked)
	select {
	case <-first:
		t.Error("over before its end")
	default:
	}
	over = true
	x.Happened("c")
	<-first
	<-second
	<-x.Of("c", asked)
	select {
	case <-other:
		t.Error("the end of another woke it")
	default:
	}
}
