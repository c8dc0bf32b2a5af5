package client

import (
	"context"
	"fmt"

	"github.com/coracle-project/coracle/shim/api"
)

// Attach copies until the container exits or the client's stdin and outputs are gone
// or ctx ends. It goes on with the next shim when one dies.
func (c *Client) Attach(ctx context.Context, podID, id string, s Streams) error {
	l, err := c.forPod(podID)
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	// With a terminal the shim leaves stderr alone.
	p, err := c.makeFIFOs(s, false)
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", id, err)
	}
	defer p.close()
	// A shim that is replaced must find stdin as it was, until we end it ourselves; but
	// a reading guard on the outputs is ours alone, and a shim sees when that goes.
	p.copy(s.Stdin, func() {})
	rctx, stop := context.WithCancel(ctx)
	defer stop()
	if s.Resize != nil {
		go c.resize(rctx, podID, id, "", s.Resize)
	}
	ended := context.AfterFunc(ctx, p.close) // so that the shim sees that no one reads
	defer ended()
	err = l.again(ctx, func(ctx context.Context, k *conn) error {
		_, err := k.shim.Attach(ctx, &api.AttachRequest{Id: id, Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr})
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return p.finish(ctx)
}
