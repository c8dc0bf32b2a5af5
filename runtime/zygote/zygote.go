// Package zygote starts processes from plans (package plan) through a tiny helper process:
// one thread, a few pages of memory, no libc and no Go runtime, in a mount namespace that
// holds nothing of the host's. Go decides what a child does, the helper only carries it out.
// See zygote.c.
package zygote

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/zygote/program"
)

// ErrGone says that the helper has died. Start another.
var ErrGone = errors.New("the container starter has died")

// ErrLost means that the helper died after it had received a request. Its child may be alive, and
// has the descriptors of the request.
var ErrLost = errors.New("the container starter died while it started a process; try again")

// Hung says why a helper that did not answer was killed. It is wrapped in ErrGone or ErrLost.
type Hung struct {
	Where string // which process, and where it waits
	Stack string // of the kernel; "" if it may not be read
}

func (h *Hung) Error() string { return "it did not answer: " + h.Where }

// Zygote is a running helper. Its methods may be called concurrently.
type Zygote struct {
	// NoFile is the RLIMIT_NOFILE, soft and hard, that programs inherit from this process's
	// parent. The helper itself has a greater one.
	NoFile [2]uint64

	features plan.Features
	plan     *plan.Plan // of its own surroundings
	patience Patience

	mu      sync.Mutex
	sock    *os.File
	process *program.Process
	asked   []question      // and not answered yet
	made    plan.Namespaces // by Ahead
}

// Patience limits a helper's step of a request: reading a part of it, or answering.
type Patience struct {
	// Idle applies to a helper that is stopped, or sleeps although it has nothing to wait for.
	Idle time.Duration
	// Busy applies to a helper that works, or waits for a CPU or in the kernel: making a network
	// namespace takes seconds while many are being removed.
	Busy time.Duration
}

// DefaultPatience is long: a machine may be overloaded, and a helper that was killed is replaced.
var DefaultPatience = Patience{Idle: 10 * time.Second, Busy: 2 * time.Minute}

// Start starts a helper, which makes its surroundings; it need not be done when Start returns.
// The helper ends with this process, or by Close. noPivot is plan.Zygote's.
// early is taken instead of starting another; it may be nil.
func Start(f plan.Features, noPivot bool, p Patience, early *program.Starting) (*Zygote, error) {
	z := &Zygote{features: f, plan: plan.Zygote(noPivot), patience: p}
	return z.start(early, z.setUp)
}

// StartPlain starts a helper that stays where this process is, and sees what it sees. Its
// children make their own surroundings: see plan.Options.Gather.
func StartPlain(f plan.Features, p Patience, early *program.Starting) (*Zygote, error) {
	z := &Zygote{features: f, patience: p}
	return z.start(early, func() error { return nil })
}

func (z *Zygote) start(early *program.Starting, setUp func() error) (*Zygote, error) {
	var err error
	if z.sock, z.process, err = early.Take(); z.sock == nil && err == nil {
		z.sock, z.process, err = program.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the container starter: %w", err)
	}
	err = z.limitWaits()
	if err == nil {
		err = z.raiseNoFile()
	}
	if err == nil {
		err = setUp()
	}
	if err != nil {
		_ = z.Close()
		return nil, fmt.Errorf("start the container starter: %w", err)
	}
	return z, nil
}

// limitWaits makes each wait on the socket end with EAGAIN after z.patience.Idle; see hung.
func (z *Zygote) limitWaits() error {
	t := unix.NsecToTimeval(z.patience.Idle.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(int(z.sock.Fd()), unix.SOL_SOCKET, option, &t); err != nil {
			return fmt.Errorf("limit waits for the starter: %w", err)
		}
	}
	return nil
}

// hung returns why the helper counts as hung, or nil. A wait for an event of poll(2) started at
// began and has just ended without the event.
func (z *Zygote) hung(began time.Time, event int16) error {
	pid := z.process.Pid
	if state := stuck.State(pid); (state == 'R' || state == 'D') && time.Since(began) < z.patience.Busy {
		return nil
	}
	// The event may have come after the wait; the helper then has nothing to do.
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(z.sock.Fd()), Events: event}}, 0); n > 0 || errors.Is(err, unix.EINTR) {
		return nil
	}
	return &Hung{stuck.Describe(pid), stuck.Stack(pid)}
}

func (z *Zygote) raiseNoFile() error {
	var limit unix.Rlimit
	if err := unix.Prlimit(z.process.Pid, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	z.NoFile = [2]uint64{limit.Cur, limit.Max}
	limit.Cur = limit.Max
	if err := unix.Prlimit(z.process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		return fmt.Errorf("set RLIMIT_NOFILE: %w", err)
	}
	return nil
}

func (z *Zygote) setUp() error {
	code, err := z.plan.Encode(z.features)
	if err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	tree, err := z.plan.Opens[1].Tree.Open(z.features)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.ask(z.plan, code, []int{null, tree})
}

// Ahead makes the helper create namespaces of its own while the caller goes on. The next child
// inherits them instead of creating them. That child must be the last one; see Made. Clone returns
// the error.
func (z *Zygote) Ahead(ns plan.Namespaces) error {
	p := &plan.Plan{Ops: []plan.Op{plan.Unshare{Types: ns}}}
	code, err := p.Encode(z.features)
	if err != nil {
		return err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.made |= ns
	return z.ask(p, code, nil)
}

// Made are the namespaces that the helper has made for its next child.
func (z *Zygote) Made() plan.Namespaces {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.made
}

// question is a plan that the helper runs itself.
type question struct {
	plan *plan.Plan
	code *plan.Code
}

// ask sends a plan for the helper itself. settled takes the answer.
func (z *Zygote) ask(p *plan.Plan, code *plan.Code, fds []int) error {
	z.asked = append(z.asked, question{p, code})
	return z.send(code, 0, 0, fds)
}

// settled takes the answers to ask, before the first other request.
func (z *Zygote) settled() error {
	for len(z.asked) > 0 {
		result, at, err := z.answer()
		if err != nil {
			return err
		}
		if result < 0 {
			q := z.asked[0]
			err := q.plan.Fail(q.code, int(at), unix.Errno(-result))
			if q.plan == z.plan {
				err = fmt.Errorf("start the container starter: %w", err)
			}
			z.end()
			return err
		}
		z.asked = z.asked[1:]
	}
	return nil
}

// Clone starts a child with new namespaces, which runs a plan, and returns its pid. The child
// is this process's own, to be reaped by it. The descriptors are the plan's, in order; the
// caller keeps its own. With cgroup, a descriptor's number among them, the child is cloned
// into that cgroup (version 2); -1 leaves it where this process is.
func (z *Zygote) Clone(code *plan.Code, ns plan.Namespaces, cgroup int, fds []int) (int, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	flags := uint64(ns&^z.made) | unix.CLONE_PARENT
	if cgroup >= 0 {
		flags |= unix.CLONE_INTO_CGROUP
	}
	if ns&z.made != z.made {
		return 0, fmt.Errorf("the starter has namespaces %v, which the process is not to have", (z.made &^ ns).Names())
	}
	if err := z.settled(); err != nil {
		return 0, err
	}
	if err := z.send(code, flags, max(cgroup, 0), fds); err != nil {
		return 0, err
	}
	result, _, err := z.answer()
	if hung := (*Hung)(nil); errors.As(err, &hung) {
		return 0, fmt.Errorf("%w: %w", ErrLost, hung)
	} else if err != nil {
		return 0, fmt.Errorf("%w: %v", ErrLost, err) // not ErrGone
	}
	switch errno := unix.Errno(-result); {
	case result >= 0:
		return int(result), nil
	case errno == unix.EMFILE:
		return 0, fmt.Errorf("the container needs %d descriptors, raise RLIMIT_NOFILE, whose hard limit is %d: %w", len(fds), z.NoFile[1], errno)
	case errno == unix.EAGAIN:
		return 0, fmt.Errorf("clone3: too many processes, see pids.max of the cgroup and RLIMIT_NPROC: %w", errno)
	default:
		return 0, fmt.Errorf("clone3: %w", errno)
	}
}

// send sends a struct request of zygote.h.
func (z *Zygote) send(code *plan.Code, flags uint64, cgroup int, fds []int) error {
	const magic, most = 0x315a4f43, 250
	if z.sock == nil {
		return ErrGone
	}
	le := binary.LittleEndian
	h := make([]byte, 0, 32)
	h = le.AppendUint32(h, magic)
	h = le.AppendUint32(h, uint32(len(code.Bytes)))
	h = le.AppendUint32(h, uint32(code.Insns))
	h = le.AppendUint32(h, uint32(len(fds)))
	h = le.AppendUint64(h, flags)
	h = le.AppendUint32(h, uint32(cgroup))
	h = le.AppendUint32(h, 0) // the sync descriptor
	raw := int(z.sock.Fd())
	for first := true; first || len(fds) > 0; first = false {
		n := min(len(fds), most)
		if err := z.sendAll(raw, h, unix.UnixRights(fds[:n]...)); err != nil {
			return z.gone(err)
		}
		fds, h = fds[n:], []byte{0}
	}
	if err := z.sendAll(raw, code.Bytes, nil); err != nil {
		return z.gone(err)
	}
	return nil
}

// answer is a struct reply of zygote.h.
func (z *Zygote) answer() (result, at int64, err error) {
	if z.sock == nil {
		return 0, 0, ErrGone
	}
	var reply [16]byte
	began := time.Now()
	for have := 0; have < len(reply); {
		n, err := unix.Read(int(z.sock.Fd()), reply[have:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			err = z.hung(began, unix.POLLIN)
		case errors.Is(err, unix.EINTR):
			err = nil
		case err == nil && n == 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, 0, z.gone(err)
		}
		have += max(n, 0)
	}
	le := binary.LittleEndian
	return int64(le.Uint64(reply[:])), int64(le.Uint64(reply[8:])), nil
}

func (z *Zygote) sendAll(sock int, b, oob []byte) error {
	for began := time.Now(); len(b) > 0; {
		n, err := unix.SendmsgN(sock, b, oob, nil, unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if err := z.hung(began, unix.POLLOUT); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		b, oob, began = b[n:], nil, time.Now()
	}
	return nil
}

// gone reaps a helper that has died. Its children live on.
func (z *Zygote) gone(cause error) error {
	z.end()
	return fmt.Errorf("%w: %w", ErrGone, cause)
}

func (z *Zygote) end() {
	if z.sock == nil {
		return
	}
	_ = z.sock.Close()
	z.sock = nil
	_ = z.process.Kill()
	_ = z.process.Wait()
}

// Watch calls died as soon as the helper dies, and then reaps it. Without Watch, a dead helper is a
// zombie until the next call. Watch may be called once, before all other methods.
func (z *Zygote) Watch(died func()) error {
	return z.process.Watch(func() {
		died()
		_ = z.Close()
	})
}

// Dismiss makes the helper end and does not wait. Close reaps it, if it was not reaped.
func (z *Zygote) Dismiss() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.sock != nil {
		_ = z.process.Kill()
	}
}

// Close ends the helper. What it started lives on.
func (z *Zygote) Close() error {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.end()
	return nil
}
