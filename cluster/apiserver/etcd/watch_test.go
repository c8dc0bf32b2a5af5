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
