package shimv2

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/internal/boundedconn"
	"github.com/coracle-project/coracle/runtime"
)

// errGone says that a shim does not listen any more.
var errGone = errors.New("the shim is gone")

// conn is the connection to one shim.
type conn struct {
	client  *ttrpc.Client
	bounded *boundedconn.Conn
	service string
	lost    chan struct{} // closed when it has ended
}

// errHung says that a shim does not read its requests. It has not gone, nor have its containers.
var errHung = errors.New("the shim takes no requests")

// defaultPatience is how long a request waits for a shim that does not read.
const defaultPatience = 10 * time.Second

// connect returns the connection to a container's shim, which containers share. errGone if
// no one listens.
func (e *Engine) connect(o *own) (*conn, error) {
	if o.Address == "" {
		return nil, errGone // it was killed before it had told
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.conns[o.Address]; c != nil {
		select {
		case <-c.lost:
			delete(e.conns, o.Address)
		default:
			return c, nil
		}
	}
	nc, err := net.Dial("unix", o.Address)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to shim: %w", err)
	}
	c := &conn{
		lost: make(chan struct{}), service: fmt.Sprintf("containerd.task.v%d.Task", o.Version), bounded: boundedconn.New(nc, e.patience),
	}
	c.client = ttrpc.NewClient(c.bounded, ttrpc.WithOnClose(func() { close(c.lost) }))
	e.conns[o.Address] = c
	return c, nil
}

// disconnect ends the connection to a shim that is not needed any more.
func (e *Engine) disconnect(o *own) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.conns[o.Address]; c != nil {
		c.client.Close()
		delete(e.conns, o.Address)
	}
}

// call makes one call. Messages of version 2 and 3 are the same on the wire.
func (e *Engine) call(ctx context.Context, o *own, method string, req, resp any) error {
	c, err := e.connect(o)
	if err != nil {
		return err
	}
	ctx = ttrpc.WithMetadata(ctx, ttrpc.MD{"containerd-namespace-ttrpc": {namespace}})
	err = callError(ctx, c.client.Call(ctx, c.service, method, req, resp))
	if errors.Is(err, errGone) && c.bounded.Hung() {
		return errHung
	}
	return err
}

// callError gives an error of a shim one of package runtime's kinds.
func callError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case overdue(ctx):
		return context.DeadlineExceeded
	case errors.Is(err, ttrpc.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("%w: %w", errGone, err)
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for code, kind := range map[codes.Code]error{
		codes.NotFound: runtime.ErrNotFound, codes.AlreadyExists: runtime.ErrExists,
		codes.Unimplemented: runtime.ErrUnsupported,
	} {
		if s.Code() == code {
			return fmt.Errorf("%w: %s", kind, s.Message())
		}
	}
	return errors.New(s.Message())
}

// overdue says whether a context's deadline has passed, whose timer may be late. A shim knows the
// deadline, too, kills what it runs, and says of it only how that ended.
func overdue(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}

// shimPid is the process that serves a connection; 0 if it does not say.
func (e *Engine) shimPid(ctx context.Context, o *own, id string) int {
	var res task.ConnectResponse
	if err := e.call(ctx, o, "Connect", &task.ConnectRequest{ID: id}, &res); err != nil {
		return 0
	}
	return int(res.ShimPid)
}
