package csi

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// turns has one call at a time for each volume of a pod. Its zero value has none.
type turns struct {
	mu  sync.Mutex
	all map[string]*turn // by the volume's State
}

type turn struct {
	token chan struct{}
	users int // those that have the turn, or wait for it
}

// take waits for the turn of a volume. The caller gives it back once.
func (t *turns) take(ctx context.Context, volume string) (leave func(), err error) {
	t.mu.Lock()
	own := t.all[volume]
	if own == nil {
		own = &turn{token: make(chan struct{}, 1)}
		if t.all == nil {
			t.all = map[string]*turn{}
		}
		t.all[volume] = own
	}
	own.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.all, volume)
		}
	}
	select {
	case own.token <- struct{}{}:
		return func() { <-own.token; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	}
}

var errStopped = errors.New("the kubelet ends")

// inTurn runs f for a volume of a pod when no other call for the volume runs. It returns when ctx
// ends, but f goes on with the context life, until its calls to the driver reach their deadline. A
// driver may go on working, for example in mkfs, after its caller has given up, and must not be
// asked for the opposite meanwhile (CSI spec, "Concurrency").
func (n *Node) inTurn(ctx context.Context, v source.Mounted, f func(life context.Context) error) error {
	leave, err := n.turns.take(ctx, v.State)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	started := n.work.Start(func(life context.Context) {
		defer leave()
		defer func() { // a fault of one volume does not end the process
			if p := recover(); p != nil {
				done <- fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		done <- f(life)
	})
	if !started {
		leave()
		return errStopped
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
