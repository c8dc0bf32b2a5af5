package etcd

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// Regression: after the loss of the quorum, the members of before were shown for up to 5 s more.
func TestMembersAreAskedWhenTheLeaderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		var leader atomic.Uint64
		leader.Store(1)
		var looks []time.Duration
		w := &watch{
			leader: func() types.ID { return types.ID(leader.Load()) }, look: func(context.Context) { looks = append(looks, time.Since(began)) },
			stop: stop, ended: make(chan struct{}),
		}
		go w.run(ctx)
		time.Sleep(firstLook + leaderEvery/2)
		leader.Store(0)
		time.Sleep(firstLook + leaderEvery + membersEvery)
		w.close()
		lost := firstLook + leaderEvery
		if want := []time.Duration{firstLook, lost, lost + membersEvery}; !slices.Equal(looks, want) {
			t.Errorf("it looks after %v, want %v", looks, want)
		}
	})
}

// Regression: a server with a port for others kept it for good when none came, or when the last one
// was removed by a process that was killed, and everything that needs a cluster of one was refused.
func TestTheLastMemberLeavesItsPeers(t *testing.T) {
	one := newTestMember(t, "one", testBundle(t))
	one.takesPeers(t)
	one.alone = make(chan struct{}, 1)
	one.mustStart(t)
	defer one.Close()
	select {
	case <-one.alone:
	case <-time.After(time.Minute):
		t.Error("the only member does not leave its peers")
	}
}

func TestAloneForLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last, left := false, 0
		w := &watch{last: func() bool { return last }, alone: func() error { left++; return nil }, aloneFor: aloneFor}
		look := func(want int) {
			t.Helper()
			if w.leave(); left != want {
				t.Errorf("it left %d times, want %d", left, want)
			}
		}
		look(0)
		time.Sleep(2 * aloneFor)
		look(0)
		last = true // another one is removed
		look(0)
		time.Sleep(aloneFor / 2)
		look(0)
		last = false // and joins again
		look(0)
		time.Sleep(aloneFor / 2)
		last = true
		look(0)
		time.Sleep(aloneFor - 1)
		look(0)
		// Regression: it left while another one was being added, so the learner came to a cluster whose
		// member had no port for it.
		w.joins.RLock()
		time.Sleep(time.Nanosecond)
		look(0)
		w.joins.RUnlock() // that failed, and someone may try again
		look(0)
		time.Sleep(aloneFor - 1)
		look(0)
		time.Sleep(time.Nanosecond)
		look(1)
	})
}
