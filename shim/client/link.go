package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coracle-project/coracle/internal/boundedconn"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/sock"
)

// link is the connection to one shim, made again whenever the shim is replaced. The
// keeper holds the shim's listening socket, so connecting succeeds at any time, and
// the first request waits in the socket until the next shim is there. If the socket's file is gone,
// the Client repairs it.
type link struct {
	name   string // "node", or the pod's id
	dir    string
	log    *slog.Logger
	limits limits

	slow func() // called after a slow call

	first  chan struct{} // closed when the first READY event has come
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned

	attention attention
	cond      condition

	mu      sync.Mutex
	conn    *conn         // nil while there is none
	dialErr error         // why conn is nil
	changed chan struct{} // closed when conn is replaced, or when no connection will follow
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

func newLink(name string, cfg *Config) *link {
	l := &link{
		name: name, dir: shimDir(cfg.StateDir, name), log: cfg.Log.With("shim", name), limits: cfg.limits,
		first: make(chan struct{}), done: make(chan struct{}), changed: make(chan struct{}),
	}
	l.cond.since = time.Now()
	return l
}

func (l *link) logPath() string { return filepath.Join(l.dir, "shim.log") }

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

// run keeps the connection until ctx ends, and delivers events.
func (l *link) run(ctx context.Context, c *Client) {
	defer close(l.done)
	defer l.attention.end()
	for r := (retry{}); ctx.Err() == nil; {
		l.await(ctx, c, &r)
	}
}

// retry spaces out the attempts: the first follows at once, the others after growing pauses.
type retry struct {
	tries int // without an answer
	pause time.Duration
}

const (
	quickTries = 2  // before a repair: the keeper may be about to start the shim
	warnTries  = 5  // before a warning
	everyTries = 20 // between repairs of a socket that accepts connections and closes them
	maxPause   = time.Second
)

// wait waits before the next attempt.
func (r *retry) wait(ctx context.Context) {
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
	}
	r.pause = min(2*r.pause+10*time.Millisecond, maxPause)
}

// await connects repeatedly until the shim has answered, and follows that connection to its end.
func (l *link) await(ctx context.Context, c *Client, r *retry) {
	answered := l.begin() // an unresponsive shim is detected even without calls
	defer answered()
	l.setReady(false)
	for began := (time.Time{}); began.IsZero() && ctx.Err() == nil; r.wait(ctx) {
		dialed, err := l.once(ctx, c, func() {
			answered()
			l.setReady(true)
			c.observe(l)
			if r.tries >= warnTries {
				l.log.Info("shim answers again", "tries", r.tries)
			}
			began, r.tries = time.Now(), 0
		})
		switch {
		case ctx.Err() != nil:
			return
		case began.IsZero():
			l.missed(ctx, c, r, dialed, err)
		case time.Since(began) > maxPause:
			r.pause = 0
		}
	}
}

// missed handles a failed attempt to reach the shim.
func (l *link) missed(ctx context.Context, c *Client, r *retry, dialed bool, err error) {
	r.tries++
	lost := !dialed && unreachable(err) && r.tries > quickTries
	if lost || (dialed && r.tries%everyTries == 0) {
		if rerr := c.repair(ctx, l, lost); rerr != nil {
			err = rerr
		}
	}
	l.failed(err)
	if r.tries == warnTries {
		l.log.Warn("cannot reach shim; trying again", "tries", r.tries, "err", err)
	}
}

// once connects and follows the connection to its end. It returns an error once the connection has
// ended or failed.
func (l *link) once(ctx context.Context, c *Client, ready func()) (dialed bool, err error) {
	k, err := l.connect()
	if err != nil {
		l.set(nil, err)
		return false, err
	}
	err = l.follow(ctx, k, ready, func(ev *api.Event) { c.deliver(l, ev) })
	l.set(nil, err)
	k.Close()
	return true, err
}

// unreachable reports whether no shim can ever receive connections on the socket: its file is
// missing, or no process listens on it. Other errors are temporary, or concern this process (no
// free descriptor).
func unreachable(err error) bool {
	for _, one := range []syscall.Errno{
		syscall.ENOENT, syscall.ECONNREFUSED, syscall.ENOTDIR, syscall.EPROTOTYPE, syscall.ELOOP, syscall.ENOTSOCK,
	} {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

func (l *link) connect() (*conn, error) {
	nc, err := sock.Dial(l.dir, sock.Shim, "unix")
	if err != nil {
		return nil, err
	}
	c := &conn{lost: make(chan struct{})}
	c.Client = ttrpc.NewClient(boundedconn.New(nc, l.limits.ping), ttrpc.WithOnClose(func() { close(c.lost) }))
	c.task, c.shim = task.NewTTRPCTaskClient(c.Client), api.NewShimClient(c.Client)
	return c, nil
}

// follow reads events until the connection ends or fails. Calls may use the connection from the
// start.
func (l *link) follow(ctx context.Context, c *conn, ready func(), deliver func(*api.Event)) error {
	l.set(c, nil)
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
			ready()
			select {
			case <-l.first:
				deliver(ev)
			default:
				close(l.first)
			}
			continue
		}
		deliver(ev)
	}
}

func (l *link) set(c *conn, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.dialErr, l.deleted = c, err, nil
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

// dialed returns the connection, or the reason why there is none.
func (l *link) dialed() (*conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.dialErr
}

// current waits for a live connection, as long as ctx lasts.
func (l *link) current(ctx context.Context) (*conn, error) {
	for {
		l.mu.Lock()
		c, changed := l.conn, l.changed
		l.mu.Unlock()
		if err := l.gone(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
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
			return nil, l.unavailable(ctx)
		}
	}
}

// unavailable is the error of a call whose context ended before the shim answered.
func (l *link) unavailable(ctx context.Context) error {
	if err := l.health(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, err, ctx.Err())
	}
	return fmt.Errorf("shim %s: %w: %w", l.name, ErrUnavailable, ctx.Err())
}

// call makes one call, which fails with ErrUnavailable if the shim dies under it.
func (l *link) call(ctx context.Context, do func(context.Context, *conn) error) error {
	defer l.begin()()
	c, err := l.current(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	err = l.inTime(ctx, callError(do(ctx, c)))
	if time.Since(began) > slowCall {
		l.slow()
	}
	return err
}

// slowCall is the duration after which a call counts as slow: its shim may be waiting for the
// keeper.
const slowCall = time.Second

// inTime adds to the error of a call whose context has ended the reason, if it is known.
func (l *link) inTime(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && l.health() != nil {
		return l.unavailable(ctx)
	}
	return err
}

// again is call for what may be done twice: it goes on with the next shim.
func (l *link) again(ctx context.Context, do func(context.Context, *conn) error) error {
	defer l.begin()()
	for {
		c, err := l.current(ctx)
		if err != nil {
			return err
		}
		err = l.inTime(ctx, callError(do(ctx, c)))
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
	if errors.Is(err, ttrpc.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
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
	case codes.DataLoss:
		return remoteError{ErrDamaged, s.Message()}
	case codes.Unavailable:
		return remoteError{ErrUnavailable, s.Message()}
	case codes.DeadlineExceeded:
		return remoteError{context.DeadlineExceeded, s.Message()}
	case codes.Canceled:
		return remoteError{context.Canceled, s.Message()}
	}
	return errors.New(s.Message())
}

// remoteError is the shim's own text, with its kind of error.
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
