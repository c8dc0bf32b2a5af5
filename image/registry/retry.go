package registry

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

const (
	smallTries = 3 // of a document
	blobTries  = 5 // of a blob, from a host that has sent nothing of it
	// blobStuck is how often a host that has sent some of a blob may break off without sending
	// blobStep bytes more. One that is away for a while is waited for as long as there is
	// patience (see patience), which these tries outlast: what came is not thrown away for
	// a number of breaks. One that drips is given up.
	blobStuck  = 200
	blobStep   = 64 << 10
	backoffMin = 100 * time.Millisecond
	backoffMax = 3 * time.Second
	// maxRetryAfter is how long a registry may make us wait. One that asks for more is
	// told to the caller instead, who can ask again when it suits.
	maxRetryAfter = time.Minute
)

// retry calls do until it succeeds, fails for good, or has been tried often enough.
func retry(ctx context.Context, tries int, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || try >= tries || !isTransient(err) {
			return err
		}
		if err := pause(ctx, try, err); err != nil {
			return err
		}
	}
}

// effort counts how often a transfer has broken off without getting on.
type effort struct {
	mark  int64 // up to here it has got on
	tries int
}

// failed notes a break at a byte, and returns how many there were in a row.
func (e *effort) failed(at int64) int {
	if at-e.mark >= blobStep {
		e.mark, e.tries = at, 0
	}
	e.tries++
	return e.tries
}

// mostTries is how many breaks in a row a host is forgiven.
func mostTries(hasSent bool) int {
	if hasSent {
		return blobStuck
	}
	return blobTries
}

// pause waits before the next try after cause: twice as long each time, and at least as
// long as the registry has asked for.
func pause(ctx context.Context, try int, cause error) error {
	wait := min(backoffMin<<min(try-1, 10), backoffMax)
	var r *remoteError
	if errors.As(cause, &r) {
		wait = max(wait, r.after)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retryAfter reads the header of that name (RFC 9110, section 10.2.3): seconds or a date.
// What cannot be read is 0.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
