package image

import (
	"context"
	"errors"
	"sync"
)

// errClosed is returned by calls on a closed store.
var errClosed = errors.New("image store is closed")

// calls are the store's calls and background work that Close waits for.
type calls struct {
	ctx   context.Context // ends at close
	end   context.CancelFunc
	wg    sync.WaitGroup
	begun sync.Mutex // held while one is added, and when no more may be
}

func newCalls() *calls {
	c := &calls{}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// begin enters a call that close waits for; done leaves it.
func (c *calls) begin() error {
	c.begun.Lock()
	defer c.begun.Unlock()
	if c.ctx.Err() != nil {
		return errClosed
	}
	c.wg.Add(1)
	return nil
}

func (c *calls) done() { c.wg.Done() }

// bound is a context that ends with the caller's or with the calls.
func (c *calls) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.ctx, func() { cancel(errClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// because is err, or why the context ended if it has.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// close cancels what is under way and waits until it has stopped.
func (c *calls) close() {
	c.begun.Lock()
	c.end()
	c.begun.Unlock()
	c.wg.Wait()
}
