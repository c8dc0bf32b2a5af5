package shim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// owner is the process that an exec runs for: the daemon. The exec ends with it. A daemon that
// reconnects, to the next shim, is still the same process.
type owner struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot
	// Namespace is the inode of PID's pid namespace.
	Namespace uint64 `json:"pidNamespace"`
}

var (
	errOwnerGone = errors.New("the daemon that started the exec has ended")
	errTimeout   = errors.New("deadline exceeded")
)

// owners watches for the end of owners, with one goroutine for each owner that has execs.
type owners struct {
	mu   sync.Mutex
	live map[owner]*watch
	work sync.WaitGroup
}

// watch waits for an owner's end, for all its execs.
type watch struct {
	ctx   context.Context // ends with the owner
	stop  context.CancelFunc
	users int
}

// life returns a context that ends when the process ends, or at once if it has ended already. The
// caller calls leave when it no longer needs the context. For an owner in another pid namespace,
// which cannot be watched from here, the context never ends.
func (o *owners) life(serving context.Context, w owner) (_ context.Context, leave func()) {
	if here, err := pidNamespace(); err != nil || here != w.Namespace {
		return context.Background(), func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if one := o.live[w]; one != nil {
		one.users++
		return one.ctx, func() { o.leave(w, one) }
	}
	ctx, end := context.WithCancelCause(context.Background())
	process, err := pidfd.OpenStarted(w.PID, w.StartTime)
	if err != nil {
		end(errOwnerGone)
		return ctx, func() {}
	}
	if o.live == nil {
		o.live = make(map[owner]*watch)
	}
	watching, stop := context.WithCancel(serving)
	one := &watch{ctx, stop, 1}
	o.live[w] = one
	o.work.Go(func() {
		defer process.Close()
		if pidfd.Ended(watching, process) == nil {
			end(errOwnerGone)
		}
	})
	return ctx, func() { o.leave(w, one) }
}

func (o *owners) leave(w owner, one *watch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(o.live, w)
		one.stop()
	}
}

// pidNamespace returns the inode of this process's pid namespace.
func pidNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("stat pid namespace: %w", err)
	}
	return st.Ino, nil
}

// ownerOf returns nil if the request names no owner.
func ownerOf(r *api.RunRequest) *owner {
	if r.Owner == nil {
		return nil
	}
	return &owner{int(r.Owner.Pid), r.Owner.StartTime, r.Owner.PidNamespace}
}

// overtime is how long an exec may run past its deadline. It lets the owner act first: the owner
// kills the exec and reports the timeout to its caller.
const overtime = 2 * time.Second

// now is CLOCK_MONOTONIC, in which an exec's deadline is recorded. The next shim reads the same
// clock, and the clock is never set.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	return time.Duration(t.Nano())
}

// bind makes the exec end with its owner and at its deadline, until release is called. The end
// may come at once.
func (e *execution) bind() {
	e.life = context.Background()
	unbind, leave := context.CancelFunc(nil), func() {}
	if e.rec.Owner != nil {
		e.life, leave = e.c.s.owners.life(e.c.s.serving, *e.rec.Owner)
	}
	if e.rec.Deadline > 0 {
		e.bound, unbind = context.WithTimeoutCause(e.life, e.rec.Deadline+overtime-now(), errTimeout)
	} else {
		e.bound, unbind = context.WithCancel(e.life)
	}
	e.unbind = sync.OnceFunc(func() {
		unbind()
		leave()
		close(e.released)
	})
	e.disarm = sync.OnceValue(context.AfterFunc(e.bound, e.expire)) // which may run already
	close(e.armed)
}

// release undoes bind. If expire has begun, release waits for it, and changes nothing if ctx ends
// before: then expire ends the exec.
func (e *execution) release(ctx context.Context) error {
	<-e.armed
	if !e.disarm() {
		select {
		case <-e.expired:
		default:
			select {
			case <-e.expired:
			case <-ctx.Done():
				return fmt.Errorf("it is being killed: %w", context.Cause(ctx))
			}
		}
	}
	e.unbind()
	return nil
}

// ends reports whether to kill an exec: it runs, or an earlier shim began to kill it and may have
// killed only the process itself. The record says so before the kill, unless the process is still
// to be recorded (that record says so, too) or the record has been removed.
func (e *execution) ends(p *process) bool {
	e.writing.Lock() // of two kills, the second waits for the record, too
	defer e.writing.Unlock()
	e.mu.Lock()
	begun := e.rec.Ending
	e.rec.Ending = begun || p.exitState() == nil
	now := e.rec.Ending
	e.mu.Unlock()
	if now && !begun && e.recorded {
		if err := e.write(); err != nil {
			e.c.log.Error("cannot record the kill of an exec", "exec", e.id, "err", err)
		}
	}
	return now
}

// kill kills an exec for a caller. It is recorded first, so that the next shim goes on if this one
// dies meanwhile. A start or a removal under way is not waited for: it may wait for the process.
func (e *execution) kill(ctx context.Context, p *process) error {
	if known, err := e.c.exec(e.id); err != nil || known != e || !e.ends(p) {
		return fmt.Errorf("kill exec %s in container %s: %w", e.id, e.c.id, runtime.ErrNotFound)
	}
	if err := e.c.killExec(ctx, e, p); err != nil {
		return fmt.Errorf("kill exec %s in container %s: %w", e.id, e.c.id, err)
	}
	return nil
}

// expire kills an exec whose owner has ended or whose time is over, and removes it when there is no
// owner any more who does.
func (e *execution) expire() {
	if e.take(e.c.s.serving) != nil { // a start in progress fails, because it checks e.bound
		close(e.expired)
		return
	}
	p := e.process()
	e.give()
	ctx, cancel := context.WithTimeout(context.Background(), dying)
	defer cancel()
	cause := context.Cause(e.bound)
	if p != nil && e.ends(p) {
		e.c.log.Warn("killing exec", "exec", e.id, "pid", p.pid, "reason", cause)
		if err := e.c.killExec(ctx, e, p); err != nil {
			e.c.log.Error("cannot kill exec", "exec", e.id, "pid", p.pid, "err", err)
		}
	}
	err := faultExecKilled.At(ctx)
	close(e.expired)
	if err != nil {
		return
	}
	select {
	case <-e.life.Done():
		ctx, cancel := context.WithTimeout(context.Background(), dying)
		defer cancel()
		if err := e.remove(ctx); err != nil {
			e.c.log.Warn("cannot remove an exec yet", "exec", e.id, "err", err)
		}
	case <-e.released:
	}
}
