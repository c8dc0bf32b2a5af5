package keylock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

func TestOneAtATimePerKey(t *testing.T) {
	var l Lock
	var wg sync.WaitGroup
	n := map[string]int{"a": 0, "b": 0}
	counts := map[string]*int{"a": new(int), "b": new(int)}
	for range 100 {
		for key := range n {
			wg.Go(func() {
				release, err := l.Acquire(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				defer release()
				*counts[key]++ // the race detector watches
			})
		}
	}
	wg.Wait()
	for key, c := range counts {
		if *c != 100 {
			t.Errorf("%s: %d", key, *c)
		}
	}
	if len(l.held) != 0 {
		t.Errorf("names kept: %v", l.held)
	}
}

func TestWaitEndsWithTheContext(t *testing.T) {
	var l Lock
	release, err := l.Acquire(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("caller left")
	cancel(why)
	if _, err := l.Acquire(ctx, "pod"); !errors.Is(err, why) || !strings.Contains(err.Error(), "pod") {
		t.Errorf("error %v", err)
	}
	other, err := l.Acquire(ctx, "another")
	if err != nil {
		t.Errorf("a free key: %v", err)
	}
	other()
	release()
	again, err := l.Acquire(t.Context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	again()
}
