package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// execution is an additional process in a container. The process has the caller's
// FIFOs themselves, so that no byte goes through the shim, unless it has a terminal.
type execution struct {
	c    *container
	id   string
	spec *specs.Process // nil if adopted

	op chan struct{} // full during Start and Delete; see take

	mu      sync.Mutex
	rec     execRecord
	proc    *process // nil until started
	tty     *os.File
	relay   *relay
	stdin   *os.File      // our write end, until CloseIO; or nil
	started chan struct{} // closed when it has been started, or never will be
	watched chan struct{} // closed when the goroutine that waits for the end has ended

	// writing is held while the record's file is written or removed, and not for longer: a kill
	// writes it during a start or a removal, which may wait for the process. Locked before mu.
	writing  sync.Mutex
	recorded bool // the file says which process it is

	// See bind.
	life     context.Context // ends with the owner
	bound    context.Context // ends with life or at the deadline
	armed    chan struct{}   // closed when disarm is there
	disarm   func() bool     // false: expire runs, or has run
	unbind   func()          // closes released
	released chan struct{}   // closed by release
	expired  chan struct{}   // closed when expire is done
}

// maxExecs limits the execs of one container, maxAllExecs the execs of all. Each takes up to six
// descriptors of the shim, three of the keeper, and one of the keeper's 16,384 entries. A kubelet
// runs at most three probes of a container at once, and people a handful of shells. containerd and
// CRI-O have no limit: there, hanging probes of one container, or a client that loops, can kill the
// node's shim.
const maxExecs, maxAllExecs = 128, 4096

// maxExecIDLength as maxIDLength.
const maxExecIDLength = 76

// addExec adds an exec that a start follows, at once or later. At once, the exec is returned taken
// for the start: a kill that comes between waits for it.
func (c *container) addExec(id string, rec execRecord, process []byte, atOnce bool) (*execution, error) {
	if err := runtime.ValidateID(id); err != nil || len(id) > maxExecIDLength {
		return nil, fmt.Errorf("exec %q in container %s: %w", id, c.id, runtime.ErrInvalidID)
	}
	var spec specs.Process
	if err := json.Unmarshal(process, &spec); err != nil {
		return nil, fmt.Errorf("exec %s in container %s: %w: process: %w", id, c.id, runtime.ErrInvalidSpec, err)
	}
	spec.Terminal = rec.Terminal
	rec.Version, rec.ID = recordVersion, id
	e := newExecution(c, rec)
	e.spec = &spec
	if atOnce {
		e.op <- struct{}{}
	}
	e.bind()
	if err := c.admit(e); err != nil {
		if atOnce {
			e.give() // expire may wait for it
		}
		_ = e.release(context.Background())
		return nil, err
	}
	return e, nil
}

// admit adds an exec to the container, unless a limit forbids it.
func (c *container) admit(e *execution) error {
	id := e.id
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rec.Phase != phaseRunning || c.deleted {
		return fmt.Errorf("exec %s in container %s: %w", id, c.id, runtime.ErrNotRunning)
	}
	if e.bound.Err() != nil {
		return fmt.Errorf("exec %s in container %s: %w: %w", id, c.id, errPrecondition, context.Cause(e.bound))
	}
	if c.execs[id] != nil {
		return fmt.Errorf("exec %s in container %s: %w", id, c.id, runtime.ErrExists)
	}
	if len(c.execs) >= maxExecs {
		return fmt.Errorf("exec %s in container %s: %w: the container already has %d", id, c.id, errExhausted, maxExecs)
	}
	if c.s.execs.Add(1) > maxAllExecs {
		c.s.execs.Add(-1)
		return fmt.Errorf("exec %s in container %s: %w: all containers together already have %d", id, c.id, errExhausted, maxAllExecs)
	}
	c.execs[id] = e
	return nil
}

func newExecution(c *container, rec execRecord) *execution {
	return &execution{
		c: c, id: rec.ID, rec: rec, op: make(chan struct{}, 1), started: make(chan struct{}), watched: make(chan struct{}),
		armed: make(chan struct{}), released: make(chan struct{}), expired: make(chan struct{}),
	}
}

func (c *container) exec(id string) (*execution, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.execs[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("exec %s in container %s: %w", id, c.id, runtime.ErrNotFound)
}

func (c *container) allExecs() []*execution {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*execution, 0, len(c.execs))
	for _, e := range c.execs {
		all = append(all, e)
	}
	return all
}

func (e *execution) path() string { return filepath.Join(e.c.dir, execPrefix+e.id+execSuffix) }
func (e *execution) key() string  { return "x/" + e.c.id + "/" + e.id }

// start starts the process and records it. If the keeper refuses its files, the process is killed,
// with what it has started: its caller is told that it has not started, and may never delete it.
func (e *execution) start(ctx context.Context) (pid int, err error) {
	if err := e.take(ctx); err != nil {
		return 0, fmt.Errorf("start exec %s in container %s: %w", e.id, e.c.id, err)
	}
	defer e.give()
	p, err := e.launch(ctx)
	if err != nil {
		return 0, err
	}
	if err := e.record(ctx); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if kerr := e.c.killExec(undo, e, p); kerr != nil {
			e.c.log.Error("cannot kill an exec that is not recorded", "exec", e.id, "pid", p.pid, "err", kerr)
		}
		return 0, err
	}
	return p.pid, nil
}

// take begins a start or a deletion, when no other is under way any more. A start can hang.
func (e *execution) take(ctx context.Context) error {
	select {
	case e.op <- struct{}{}: // also if ctx has ended
		return nil
	default:
	}
	select {
	case e.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another start or deletion has not ended: %w", context.Cause(ctx))
	}
}

func (e *execution) give() { <-e.op }

// run is start of an exec that addExec has taken, but it does not wait for the record of a process
// that has ended: it returns the exit. Removal of the execution waits for the record.
func (e *execution) run(ctx context.Context) (exit *exitState, err error) {
	p, err := e.launch(ctx)
	if err != nil {
		e.give()
		return nil, err
	}
	recorded := make(chan error, 1)
	go func() {
		defer e.give()
		recorded <- e.record(ctx)
	}()
	select {
	case <-p.exited:
		return p.exitState(), nil
	case err := <-recorded:
		return p.exitState(), err
	}
}

func (e *execution) launch(ctx context.Context) (_ *process, err error) {
	if e.process() != nil {
		return nil, fmt.Errorf("start exec %s in container %s: %w", e.id, e.c.id, runtime.ErrRunning)
	}
	if e.bound.Err() != nil { // the exec has been removed, or is about to be
		return nil, fmt.Errorf("start exec %s in container %s: %w: %w", e.id, e.c.id, errPrecondition, context.Cause(e.bound))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.bound, func() { cancel(context.Cause(e.bound)) })()
	defer func() {
		if err != nil {
			err = fmt.Errorf("exec in container %s: %w", e.c.id, err)
			e.closeFiles()
			if e.process() == nil && !errors.Is(err, errUnheld) { // or the next shim has to kill it
				_ = os.Remove(e.path()) // intend may not have written the record
			}
		}
	}()
	var child childEnds
	defer child.close()
	if e.c.rec.ownTerminal(e.rec.Terminal) {
		if child.console, err = runtime.NewConsolePair(); err != nil {
			return nil, err
		}
		child.Console = child.console.EngineEnd()
	} else {
		var in *os.File
		if child.Stdio, in, err = callerEnds(e.rec.Stdin, e.rec.Stdout, e.rec.Stderr); err != nil {
			return nil, fmt.Errorf("%w: %w", errInvalid, err)
		}
		e.mu.Lock()
		e.stdin = in
		e.mu.Unlock()
	}
	engine, err := e.c.alive()
	if err != nil {
		return nil, err
	}
	if err := e.intend(ctx); err != nil {
		return nil, err
	}
	pid, err := engine.Exec(ctx, e.spec, runtime.ExecOptions{Stdio: child.Stdio})
	if err != nil {
		return nil, err
	}
	proc, err := e.c.newProcess(pid)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.proc, e.spec = proc, nil
	e.mu.Unlock()
	close(e.started)
	go e.awaitExit()
	if err := faultExecLaunched.At(ctx); err != nil {
		return nil, err
	}
	proc.awaitStdin(ctx, &child, e.c.log)
	if child.console != nil {
		tty, err := child.console.Receive(ctx)
		if err != nil {
			_ = proc.signal(unix.SIGKILL)
			return nil, err
		}
		e.mu.Lock()
		e.tty, e.relay = tty, startRelay(tty, e.rec.Stdin, e.rec.Stdout, e.c.log)
		e.mu.Unlock()
		if proc.exitState() != nil {
			e.relay.drain()
		}
	}
	return proc, nil
}

// intend records that the process is about to be started. adoptIntent can find and kill the process
// only by what it got from its owner.
func (e *execution) intend(ctx context.Context) error {
	if e.rec.Owner == nil {
		return nil
	}
	if err := writeRecord(e.path(), e.rec, e.rec.kept); err != nil {
		return err
	}
	return faultExecIntended.At(ctx)
}

// adoptIntent kills what is left of a start that the last shim began and did not record. The caller
// has got an error, and no other part knows the process. It is found by the owner's FIFOs, whose
// names are random and which may have been removed since. With a terminal it has already been hung
// up.
func (c *container) adoptIntent(ctx context.Context, rec execRecord) {
	ctx, cancel := context.WithTimeout(ctx, dying)
	defer cancel()
	err := c.killStarted(ctx, rec)
	if err == nil {
		c.s.hold.drop("x/" + c.id + "/" + rec.ID)
		err = os.Remove((&execution{c: c, id: rec.ID}).path())
	}
	if err != nil {
		c.log.Error("cannot undo the start of an exec", "exec", rec.ID, "err", err)
	}
}

func (c *container) killStarted(ctx context.Context, rec execRecord) error {
	if strings.HasPrefix(c.record().Handler, runtime.ShimHandler) {
		return nil // its pids may belong to a virtual machine
	}
	engine, err := c.alive()
	if err != nil {
		return nil // no process was started
	}
	names := slices.DeleteFunc([]string{rec.Stdin, rec.Stdout, rec.Stderr}, func(s string) bool { return s == "" })
	return killAll(ctx, engine, c.init.pid, func(pid int, _ pidfd.Stat) bool { return holdsAny(ctx, pid, names) })
}

// record has the process outlive this shim.
func (e *execution) record(ctx context.Context) error {
	if err := e.holdFiles(); err != nil {
		return err
	}
	if err := faultExecHeld.At(ctx); err != nil {
		return err
	}
	if err := e.persist(); err != nil {
		e.c.log.Error("cannot record exec", "exec", e.id, "err", err)
	}
	return faultExecStarted.At(ctx)
}

func (e *execution) awaitExit() {
	defer close(e.watched)
	end, ok := e.proc.wait()
	if !ok {
		return
	}
	e.proc.ended(end)
	e.mu.Lock()
	relay := e.relay
	e.mu.Unlock()
	if relay != nil {
		relay.drain()
	}
	e.c.s.events.publish(e.c.exitEvent(e.id, e.proc))
}

// settled is process, but it waits for a start under way: the program may run before the engine has
// told us which process it is.
func (e *execution) settled(ctx context.Context) *process {
	select {
	case <-e.started:
	case e.op <- struct{}{}:
		e.give()
	case <-ctx.Done():
	}
	return e.process()
}

// process is nil before the start.
func (e *execution) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proc
}

// persist records the process for the first time.
func (e *execution) persist() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.recorded = true // also if the write fails: a later one may not
	return e.write()
}

// write is called with writing held.
func (e *execution) write() error {
	e.mu.Lock()
	rec := e.rec
	rec.Process = &processRecord{PID: e.proc.pid, StartTime: e.proc.startTime}
	e.mu.Unlock()
	return writeRecord(e.path(), rec, rec.kept)
}

// unrecord removes the record.
func (e *execution) unrecord() error {
	e.writing.Lock()
	defer e.writing.Unlock()
	e.recorded = false
	return os.Remove(e.path())
}

func (e *execution) holdFiles() error {
	e.c.holding.Lock() // or what is older may be put there last
	defer e.c.holding.Unlock()
	e.mu.Lock()
	files := named{"tty": e.tty, stdinName: e.stdin}
	if e.proc != nil {
		files["pid"] = e.proc.pidfd
	}
	e.mu.Unlock()
	return e.c.s.hold.put(e.key(), files)
}

func (e *execution) closeInput() {
	e.mu.Lock()
	in := e.stdin
	e.stdin = nil
	e.mu.Unlock()
	if in != nil {
		in.Close()
		_ = e.holdFiles()
	}
	if p := e.process(); p != nil {
		p.closeStdin()
	}
}

func (e *execution) resize(width, height uint16) error {
	if p := e.process(); e.rec.Terminal && p != nil && p.remote != nil {
		return p.resize(width, height)
	}
	e.mu.Lock()
	tty := e.tty
	e.mu.Unlock()
	if tty == nil {
		return fmt.Errorf("%w: exec %s in container %s has no terminal", errPrecondition, e.id, e.c.id)
	}
	return resizeTerminal(tty, width, height)
}
