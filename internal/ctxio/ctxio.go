// Package ctxio lets reading end with a context.
package ctxio

import (
	"context"
	"io"
)

// Reader reads from r until ctx ends, which then is the error. A Read that has started is not cut
// short.
func Reader(ctx context.Context, r io.Reader) io.Reader { return reader{ctx, r} }

type reader struct {
	ctx context.Context // of the one stream
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
