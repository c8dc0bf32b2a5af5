package registry

import (
	"context"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrNoRanges is a registry that sends blobs only as a whole.
var ErrNoRanges = errors.New("registry sends no ranges of blobs")

// Range fetches n bytes of a blob, from byte at on. Only check, if not nil, can tell whether they
// are right; what it refuses is asked for from the next host. No slot is taken, since someone waits
// for the bytes. Kinds: all of Blob's, ErrNoRanges, or check's errors.
func (r *Repository) Range(ctx context.Context, d ocispec.Descriptor, at, n int64, check func([]byte) error) ([]byte, error) {
	if at < 0 || n <= 0 || at > d.Size-n {
		return nil, fmt.Errorf("%w: %d bytes from byte %d on of a blob of %d", ErrInvalid, n, at, d.Size)
	}
	for {
		before := r.Honest()
		data, err := r.rangeOnce(ctx, d, at, n, check)
		if left := r.Honest(); err == nil || left == 0 || left == before {
			return data, err
		}
	}
}

func (r *Repository) rangeOnce(ctx context.Context, d ocispec.Descriptor, at, n int64, check func([]byte) error) ([]byte, error) {
	endpoints, err := r.honest()
	if err != nil {
		return nil, err
	}
	ctx, p := r.patience(ctx)
	defer p.stop()
	buf := make([]byte, n)
	s := &span{at: at, end: at + n}
	s.write = func(to int64, p []byte) error {
		copy(buf[to-at:], p)
		return nil
	}
	s.answered = func(ranged bool) error {
		if !ranged && n < d.Size {
			return ErrNoRanges // before what comes first is passed over, which may be nearly all
		}
		return nil
	}
	t := &transfer{r: r, d: d, endpoints: endpoints, got: func(int64) { p.renew() }}
	if err := t.fetch(ctx, s); err != nil {
		return nil, p.why(ctx, err)
	}
	if check == nil {
		return buf, nil
	}
	if err := check(buf); err != nil {
		for e := range t.senders {
			e.lied.Store(true)
		}
		return nil, err
	}
	return buf, nil
}
