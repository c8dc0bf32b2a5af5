package table

import "context"

// Turn lets operations on one object go one at a time, first come, first served.
type Turn chan struct{}

// Take waits for the turn, or for ctx to end.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give ends a turn that Take has taken: the next operation goes on.
func (t Turn) Give() { <-t }
