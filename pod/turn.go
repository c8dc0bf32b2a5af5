package pod

import "context"

// turn lets operations on one object go one at a time, first come, first served.
type turn chan struct{}

// take waits for the turn, or for ctx to end.
func (t turn) take(ctx context.Context) error {
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

func (t turn) give() { <-t }
