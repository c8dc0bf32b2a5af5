package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/sock"
)

// link is the connection to one shim, made again whenever the shim is replaced. The
// keeper holds the shim's listening socket, so connecting succeeds at any time, and
// the first request waits in the socket until the next shim is there.
type link struct {
	name string // "node", or the pod's id
	dir  string
	log  *slog.Logger

	ready  chan struct{} // closed when the first READY event has come
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned

	mu      sync.Mutex
	conn    *conn         // nil while there is none
	changed chan struct{} // closed when conn is replaced
	// deleted are the containers, with the pids of their inits, that were deleted since
	// the connection began and until its shim has repeated all exits: theirs may be among
	// them. nil otherwise.
	deleted map[string]int
}

type conn struct {
	*ttrpc.Client
	task task.TTRPCTaskService
	shim api.ShimClient
	lost chan struct{} // closed when the connection has ended
}

func newLink(name, dir string, log *slog.Logger) *link {
	return &link{
		name: name, dir: dir, log: log.With("shim", name),
		ready: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{}),
	}
}

// program is the shim's name in the keeper.
func (l *link) program() string { return "shim/" + l.name }

// ended says that the link is of no use any more.
func (l *link) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// run keeps the connection until ctx ends, and hands each event to deliver, but not the first READY. ensure
// makes the keeper supervise the shim; it is called when connecting fails.
func (l *link) run(ctx context.Context, ensure func(context.Context, *link) error, deliver func(*api.Event)) {
	defer close(l.done)
	for pause := time.Duration(0); ctx.Err() == nil; {
		c, err := l.connect()
		if err == nil {
			pause = 0
			err = l.follow(ctx, c, deliver)
			l.set(nil)
			c.Close()
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, os.ErrNotExist) || isRefused(err) {
			if err = ensure(ctx, l); err != nil {
				// Not even the keeper can be had: that is worth a growing pause.
				pause = min(2*pause+10*time.Millisecond, time.Second)
			}
		}
		if err != nil && !errors.Is(err, ttrpc.ErrClosed) {
			l.log.Warn("shim connection", "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (l *link) connect() (*conn, error) {
	nc, err := sock.Dial(l.dir, sock.Shim, "unix")
	if err != nil {
		return nil, err
	}
	c := &conn{lost: make(chan struct{})}
	c.Client = ttrpc.NewClient(nc, ttrpc.WithOnClose(func() { close(c.lost) }))
	c.task, c.shim = task.NewTTRPCTaskClient(c.Client), api.NewShimClient(c.Client)
	return c, nil
}

// follow reads events until the connection ends. Calls may use it from the start.
func (l *link) follow(ctx context.Context, c *conn, deliver func(*api.Event)) error {
	l.set(c)
	// The stream has no other way to end than with its connection.
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	stream, err := c.shim.Events(ctx, &api.EventsRequest{})
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		if err != nil {
			return err
		}
		if ev.Kind == api.Event_READY {
			l.repeated()
			select {
			case <-l.ready:
				deliver(ev)
			default:
				close(l.ready)
			}
			continue
		}
		deliver(ev)
	}
}

func (l *link) set(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.deleted = c, nil
	if c != nil {
		l.deleted = make(map[string]int)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// repeated notes that the shim has repeated all exits that it had when the connection began.
func (l *link) repeated() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted = nil
}

// noteDeleted is told of a container whose exit has been delivered.
func (l *link) noteDeleted(id string, pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deleted != nil {
		l.deleted[id] = pid
	}
}

// wasDeleted reports whether an exit is one that is repeated though it has been delivered
// and its container deleted.
func (l *link) wasDeleted(id string, pid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.deleted[id]
	return ok && p == pid
}

// current waits for a live connection, as long as ctx lasts.
func (l *link) current(ctx context.Context) (*conn, error) {
	for {
		l.mu.Lock()
		c, changed := l.conn, l.changed
		l.mu.Unlock()
		if c != nil {
			select {
			case <-c.lost:
			default:
				return c, nil
			}
		}
		select {
		case <-changed:
		case <-l.done:
			return nil, fmt.Errorf("shim %s: closed: %w", l.name, ErrUnavailable)
		case <-ctx.Done():
			return nil, fmt.Errorf("shim %s: %w: %w", l.name, ErrUnavailable, ctx.Err())
		}
	}
}

// call makes one call, which fails with ErrUnavailable if the shim dies under it.
func (l *link) call(ctx context.Context, do func(context.Context, *conn) error) error {
	c, err := l.current(ctx)
	if err != nil {
		return err
	}
	return callError(do(ctx, c))
}

// again is call for what may be done twice: it goes on with the next shim.
func (l *link) again(ctx context.Context, do func(context.Context, *conn) error) error {
	for {
		c, err := l.current(ctx)
		if err != nil {
			return err
		}
		err = callError(do(ctx, c))
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
		select {
		case <-c.lost: // then current waits for the next
		case <-ctx.Done():
			return err
		case <-l.done:
			return err
		}
	}
}

// callError gives an error that came over ttrpc one of this package's kinds.
func callError(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ttrpc.ErrClosed) || isRefused(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.NotFound:
		return remoteError{ErrNotFound, s.Message()}
	case codes.AlreadyExists:
		return remoteError{ErrExists, s.Message()}
	case codes.FailedPrecondition:
		return remoteError{ErrNotRunning, s.Message()}
	case codes.ResourceExhausted:
		return remoteError{ErrExhausted, s.Message()}
	case codes.InvalidArgument:
		return remoteError{ErrInvalid, s.Message()}
	case codes.Unavailable:
		return remoteError{ErrUnavailable, s.Message()}
	case codes.DeadlineExceeded:
		return remoteError{context.DeadlineExceeded, s.Message()}
	case codes.Canceled:
		return remoteError{context.Canceled, s.Message()}
	}
	return errors.New(s.Message())
}

// remoteError is the shim's own sentence, with the kind it stands for here.
type remoteError struct {
	kind error
	text string
}

func (e remoteError) Error() string { return e.text }
func (e remoteError) Unwrap() error { return e.kind }

func shimDir(stateDir, name string) string {
	if name == nodeShim {
		return filepath.Join(stateDir, "node")
	}
	return filepath.Join(stateDir, "pods", name)
}
