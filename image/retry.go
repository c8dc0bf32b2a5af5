package image

import (
	"context"
	"time"
)

const (
	smallTries = 3 // of a manifest or config
	blobTries  = 5 // of a blob, in a row without a byte
	blobBreaks = 50
	backoffMin = 100 * time.Millisecond
	backoffMax = 3 * time.Second
)

// retry calls do until it succeeds, fails for good, or has been tried often enough.
func retry(ctx context.Context, tries int, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || try >= tries || !isTransient(err) {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// pause waits before the next try, twice as long each time.
func pause(ctx context.Context, try int) error {
	t := time.NewTimer(min(backoffMin<<min(try-1, 10), backoffMax))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
