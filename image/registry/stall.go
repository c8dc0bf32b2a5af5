package registry

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience ends an operation that gets nothing for a long time, however often it is tried
// again. The guard, which is shorter, watches one connection.
type patience struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// errImpatient is the cause of an end by patience.
var errImpatient = errors.New("no byte came")

// patience returns the context of an operation; call stop when it is over.
func (r *Repository) patience(ctx context.Context) (context.Context, *patience) {
	p := &patience{limit: r.client.cfg.ProgressTimeout}
	ctx, p.cancel = context.WithCancelCause(ctx)
	p.timer = time.AfterFunc(p.limit, func() {
		p.cancel(&remoteError{
			kind: ErrUnavailable, cause: errImpatient,
			text: fmt.Sprintf("registry %s: no byte of %s came for %s", r.domain, r, p.limit),
		})
	})
	return ctx, p
}

// renew is called when something has come.
func (p *patience) renew() { p.timer.Reset(p.limit) }

func (p *patience) stop() {
	p.timer.Stop()
	p.cancel(nil)
}

// why is the cause if that was our impatience.
func (p *patience) why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errImpatient) {
		return cause
	}
	return err
}
