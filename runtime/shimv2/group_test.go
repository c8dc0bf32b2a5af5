package shimv2

import (
	"testing"
	"testing/synctest"
)

// TestGroupIsOneLock: who has waited for the lock of a sandbox that is dropped meanwhile has the
// one that those have who come later.
func TestGroupIsOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{groups: map[string]*holder{}}
		o := &own{Program: "/shim", Group: "pod"}
		last, err := e.takeGroup(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *holder, 1)
		go func() {
			h, _ := e.takeGroup(t.Context(), o)
			got <- h
		}()
		synctest.Wait()
		e.dropGroup(o)
		last.give()
		if h := <-got; h != e.group(o) {
			t.Error("the waiter has another lock than those who come")
		}
	})
}
