package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// errStalled says that a registry sent nothing for the stall timeout.
var errStalled = errors.New("registry stopped sending")

// guard cancels a request that makes no progress for a while, or takes too long in all.
type guard struct {
	ctx    context.Context // of the one request
	cancel context.CancelCauseFunc
	timer  *time.Timer // runs while the registry is waited for
	whole  *time.Timer
	limit  time.Duration
}

// newGuard starts the clocks: limit for each silence, whole for all of it.
func newGuard(ctx context.Context, limit, whole time.Duration) *guard {
	g := &guard{limit: limit}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.timer = time.AfterFunc(limit, func() {
		g.cancel(fmt.Errorf("%w for %s", errStalled, limit))
	})
	g.whole = time.AfterFunc(whole, func() {
		g.cancel(fmt.Errorf("%w fast enough to be done in %s", errStalled, whole))
	})
	return g
}

func (g *guard) resume() { g.timer.Reset(g.limit) }
func (g *guard) pause()  { g.timer.Stop() }

func (g *guard) stop() {
	g.timer.Stop()
	g.whole.Stop()
	g.cancel(nil)
}

// why turns a cancellation by the guard into errStalled.
func (g *guard) why(err error) error {
	if cause := context.Cause(g.ctx); errors.Is(cause, errStalled) {
		return cause
	}
	return err
}

// guardedBody runs the clock only while a read waits, so that a slow disk on our side
// is not taken for a slow registry.
type guardedBody struct {
	io.ReadCloser
	guard *guard
}

func (b *guardedBody) Read(p []byte) (int, error) {
	b.guard.resume()
	n, err := b.ReadCloser.Read(p)
	b.guard.pause()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.guard.why(err)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	b.guard.stop()
	return b.ReadCloser.Close()
}
