package frame

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
	"weak"

	"k8s.io/client-go/util/workqueue"
)

func TestKeysAreAddedAtTheEarliestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		added := make(chan string, 100)
		l := newDelays(func(key string) { added <- fmt.Sprint(key, " ", time.Since(began)) })
		for _, d := range []time.Duration{time.Minute, 3 * time.Minute, 2 * time.Second, time.Hour} {
			l.addAfter("a", d)
		}
		l.addAfter("b", time.Minute)
		l.addAfter("c", 0)
		l.addAfter("d", -time.Second)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		l.addAfter("a", time.Second) // once more
		l.addAfter("e", time.Hour)
		time.Sleep(time.Minute)
		l.stop()
		l.addAfter("f", time.Second)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		close(added)
		var got []string
		for each := range added {
			got = append(got, each)
		}
		if want := []string{"c 0s", "d 0s", "a 2s", "b 1m0s", "a 2m1s"}; !slices.Equal(got, want) {
			t.Errorf("added %q, want %q", got, want)
		}
	})
}

// A key that has waited is not kept, as it is by upstream's queue.
func TestAddedKeysAreForgotten(t *testing.T) {
	for _, upstream := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			queue := workqueue.NewTypedDelayingQueue[string]()
			l := newDelays(queue.Add)
			addAfter := l.addAfter
			if upstream {
				addAfter = queue.AddAfter
			}
			key := fmt.Sprint("a-key-of-its-own-", upstream)
			kept := weak.Make(unsafe.StringData(key))
			addAfter(key, time.Minute)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			got, _ := queue.Get()
			if got != key {
				t.Errorf("got %q", got)
			}
			queue.Done(got)
			for i := range 100 { // the queue's own array moves on
				queue.Add(fmt.Sprint(i))
				other, _ := queue.Get()
				queue.Done(other)
			}
			key, got = "", ""
			runtime.GC()
			if kept.Value() != nil != upstream {
				t.Errorf("upstream's queue %v: kept %v", upstream, kept.Value() != nil)
			}
			l.stop()
			queue.ShutDown()
		})
	}
}
