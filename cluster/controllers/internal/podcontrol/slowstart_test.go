package podcontrol

import (
	"errors"
	"slices"
	"sync"
	"testing"
)

func TestSlowStart(t *testing.T) {
	for name, c := range map[string]struct {
		n, failFrom int // calls from this one on fail
		called      int
		done        int
	}{
		"nothing":             {0, 99, 0, 0},
		"one":                 {1, 99, 1, 1},
		"all":                 {20, 99, 20, 20},
		"first fails":         {20, 0, 1, 0},
		"second batch fails":  {20, 1, 3, 1},
		"middle of a batch":   {20, 5, 7, 5},
		"in the last batch":   {10, 9, 10, 9},
		"a batch to the full": {7, 99, 7, 7},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var called []int
			done, err := SlowStart(c.n, func(i int) error {
				mu.Lock()
				defer mu.Unlock()
				called = append(called, i)
				if i >= c.failFrom {
					return errors.New("no")
				}
				return nil
			})
			slices.Sort(called)
			if len(called) != c.called || done != c.done || (err != nil) != (c.failFrom < c.n) {
				t.Errorf("called %v, done %d, err %v", called, done, err)
			}
			if len(slices.Compact(called)) != c.called {
				t.Errorf("called twice: %v", called)
			}
		})
	}
}
