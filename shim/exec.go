package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// execution is an additional process in a container. The process has the caller's
// FIFOs themselves, so that no byte goes through the shim, unless it has a terminal.
type execution struct {
	c    *container
	id   string
	spec *specs.Process // nil if adopted

	op sync.Mutex // Start and Delete

	mu      sync.Mutex
	rec     execRecord
	proc    *process // nil until started
	tty     *os.File
	relay   *relay
	stdin   *os.File      // our write end, until CloseIO; or nil
	started chan struct{} // closed when it has been started, or never will be
	watched chan struct{} // closed when the goroutine that waits for the end has ended
}

// maxExecIDLength as maxIDLength.
const maxExecIDLength = 76

func (c *container) addExec(id string, rec execRecord, process []byte) (*execution, error) {
	if err := runtime.ValidateID(id); err != nil || len(id) > maxExecIDLength {
		return nil, fmt.Errorf("exec %q in container %s: %w", id, c.id, runtime.ErrInvalidID)
	}
	var spec specs.Process
	if err := json.Unmarshal(process, &spec); err != nil {
		return nil, fmt.Errorf("exec %s in container %s: %w: process: %w", id, c.id, runtime.ErrInvalidSpec, err)
	}
	spec.Terminal = rec.Terminal
	rec.Version, rec.ID = recordVersion, id
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rec.Phase != phaseRunning || c.deleted {
		return nil, fmt.Errorf("exec %s in container %s: %w", id, c.id, runtime.ErrNotRunning)
	}
	if c.execs[id] != nil {
		return nil, fmt.Errorf("exec %s in container %s: %w", id, c.id, runtime.ErrExists)
	}
	e := &execution{
		c: c, id: id, spec: &spec, rec: rec, started: make(chan struct{}), watched: make(chan struct{}),
	}
	c.execs[id] = e
	return e, nil
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

// start starts the process and records it.
func (e *execution) start(ctx context.Context) (pid int, err error) {
	e.op.Lock()
	defer e.op.Unlock()
	p, err := e.launch(ctx)
	if err != nil {
		return 0, err
	}
	return p.pid, e.record(ctx)
}

// run is start, but does not wait for the record once the process has ended: then exit is how. Whoever
// removes the execution waits for the record.
func (e *execution) run(ctx context.Context) (exit *exitState, err error) {
	e.op.Lock()
	p, err := e.launch(ctx)
	if err != nil {
		e.op.Unlock()
		return nil, err
	}
	recorded := make(chan error, 1)
	go func() {
		defer e.op.Unlock()
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
	defer func() {
		if err != nil {
			err = fmt.Errorf("exec in container %s: %w", e.c.id, err)
			e.closeFiles()
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

// record has the process outlive this shim.
func (e *execution) record(ctx context.Context) error {
	e.holdFiles()
	if err := e.persist(); err != nil {
		e.c.log.Error("cannot record exec", "exec", e.id, "error", err)
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

// process is nil before the start.
func (e *execution) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proc
}

func (e *execution) persist() error {
	e.mu.Lock()
	rec := e.rec
	rec.Process = &processRecord{PID: e.proc.pid, StartTime: e.proc.startTime}
	e.mu.Unlock()
	return writeRecord(e.path(), rec, rec.kept)
}

func (e *execution) holdFiles() {
	e.c.holding.Lock() // or what is older may be put there last
	defer e.c.holding.Unlock()
	e.mu.Lock()
	files := named{"tty": e.tty, stdinName: e.stdin}
	if e.proc != nil {
		files["pid"] = e.proc.pidfd
	}
	e.mu.Unlock()
	e.c.s.hold.put(e.key(), files)
}

func (e *execution) closeInput() {
	e.mu.Lock()
	in := e.stdin
	e.stdin = nil
	e.mu.Unlock()
	if in != nil {
		in.Close()
		e.holdFiles()
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

// remove forgets the exec; a process that still runs is killed.
func (e *execution) remove(ctx context.Context) {
	e.op.Lock()
	defer e.op.Unlock()
	if p := e.process(); p != nil {
		if p.exitState() == nil {
			_ = p.signal(unix.SIGKILL) // it may end just now
			ctx, cancel := context.WithTimeout(ctx, dying)
			defer cancel()
			select {
			case <-p.exited:
			case <-ctx.Done():
			}
		}
		e.c.s.hold.drop(e.key())
		if err := os.Remove(e.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
			e.c.log.Error("cannot forget exec", "exec", e.id, "error", err)
		}
	}
	e.close()
	e.c.mu.Lock()
	known := e.c.execs[e.id] == e
	delete(e.c.execs, e.id)
	e.c.mu.Unlock()
	if known && e.process() == nil {
		close(e.started)
	}
}

// close closes all files; the process runs on.
func (e *execution) close() {
	if p := e.process(); p != nil {
		p.close()
		<-e.watched
	}
	e.closeFiles()
}

func (e *execution) closeFiles() {
	e.mu.Lock()
	relay, in := e.relay, e.stdin
	e.relay, e.stdin, e.tty = nil, nil, nil
	e.mu.Unlock()
	if relay != nil {
		relay.stop()
	}
	if in != nil {
		in.Close()
	}
}
