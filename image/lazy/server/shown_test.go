package server

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/image/lazy"
	"github.com/coracle-project/coracle/image/lazy/toc"
)

// A registry that hangs, with more readers than there are slots: each of them waits no longer than
// it may, and those of another layer do not wait for them.
func TestRegistryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChunks()
		hung := &shown{Layer: lazy.Layer{Domain: "r.example", Timeout: time.Second}, chunks: c, slots: newSlots(), source: &source{}}
		let := make(chan struct{})
		var holders, readers sync.WaitGroup
		for range atOnce {
			holders.Go(func() { _ = hung.slots.in(t.Context(), func() error { <-let; return nil }) })
		}
		synctest.Wait()
		began := time.Now()
		for range 2 * atOnce {
			readers.Go(func() {
				_, err := hung.read(t.Context(), &toc.Node{}, &toc.Chunk{Next: 1})
				if err == nil || !strings.Contains(err.Error(), "r.example has not sent it in 1s") || time.Since(began) != time.Second {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
			})
		}
		synctest.Wait()
		err := c.slots.in(t.Context(), func() error { // as a reader of another layer
			if time.Since(began) > 0 {
				t.Error("it had to wait")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		readers.Wait()
		close(let)
		holders.Wait()
	})
}
