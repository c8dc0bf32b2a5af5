package batch

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		odd := errors.New("odd")
		b := &Batches[int]{Work: func(items []int) error {
			time.Sleep(time.Second)
			sizes = append(sizes, len(items))
			if slices.Contains(items, 99) {
				return odd
			}
			return nil
		}}
		errs := make(chan error, 30)
		start := func(items ...int) {
			for _, i := range items {
				go func() { errs <- b.Do(i) }()
			}
		}
		start(1)
		synctest.Wait()
		start(2, 3, 4, 5) // while the first is being done
		time.Sleep(1500 * time.Millisecond)
		start(6, 99)
		for range 5 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, odd) {
				t.Errorf("in a batch that failed: %v", err)
			}
		}
		if want := []int{1, 4, 2}; !slices.Equal(sizes, want) {
			t.Errorf("batches of %v, want %v", sizes, want)
		}
		if err := b.Do(7); err != nil {
			t.Errorf("after a failure: %v", err)
		}
	})
}
