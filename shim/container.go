package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/containerlog"
)

// container is a container that this shim is the parent of, or adopted.
type container struct {
	s       *Service
	id, dir string
	log     *slog.Logger
	engine  runtime.Container
	init    *process
	stdio   *stdio
	watched chan struct{} // closed when the goroutine that waits for init has ended
	drained chan struct{} // closed when the output of an ended init is in the log

	op      sync.Mutex // Start, Pause, Resume, Update, Delete: one at a time
	holding sync.Mutex // putting files into the keeper; before any lock of stdio

	mu      sync.Mutex
	rec     record
	execs   map[string]*execution
	paused  bool
	deleted bool
}

func newContainer(s *Service, rec record) *container {
	return &container{
		s: s, id: rec.ID, dir: s.dirOf(rec.ID), rec: rec,
		log: s.log.With("container", rec.ID), execs: make(map[string]*execution),
		watched: make(chan struct{}), drained: make(chan struct{}),
	}
}

// create makes a container from a record that says what is wanted, restored if there is a
// directory with a checkpoint. On error nothing is left of it.
func (s *Service) create(ctx context.Context, rec record, opts runtime.CreateOptions, checkpoint string) (*container, error) {
	spec, err := wantedSpec(rec)
	if err != nil {
		return nil, err
	}
	if err := s.reserve(rec.ID); err != nil {
		return nil, fmt.Errorf("create %w", err)
	}
	rec.Version, rec.Phase = recordVersion, phaseCreating
	c := newContainer(s, rec)
	opts.Bundle = rec.Bundle
	if err := c.make(ctx, spec, opts, checkpoint); err != nil {
		s.forget(rec.ID)
		return nil, fmt.Errorf("create container %s: %w", c.id, err)
	}
	return c, nil
}

// wantedSpec checks what a record asks for, and reads its OCI configuration.
func wantedSpec(rec record) (*specs.Spec, error) {
	if err := runtime.ValidateID(rec.ID); err != nil {
		return nil, err
	}
	if len(rec.ID) > maxIDLength {
		return nil, fmt.Errorf("%w: %q: longer than %d characters", runtime.ErrInvalidID, rec.ID, maxIDLength)
	}
	spec, err := runtime.LoadSpec(rec.Bundle)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", errInvalid, err)
		}
		return nil, fmt.Errorf("create container %s: %w", rec.ID, err)
	}
	if spec.Process == nil {
		return nil, fmt.Errorf("create container %s: %w: process is missing", rec.ID, runtime.ErrInvalidSpec)
	}
	spec.Process.Terminal = rec.Terminal
	return spec, nil
}

// make makes the container, whose id is reserved. After an error only that is left.
func (c *container) make(ctx context.Context, spec *specs.Spec, opts runtime.CreateOptions, checkpoint string) (err error) {
	// First what may be wrong with the request, then what leaves something behind.
	log, err := c.openLog()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.undoCreate(log)
		}
	}()
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	if err := c.persist(); err != nil {
		return err
	}
	// A link costs no copy, and is safe: the record is replaced, never written in place.
	_ = os.Link(filepath.Join(c.dir, recordName), filepath.Join(c.dir, wantedName))
	if err := faultCreateRecorded.At(ctx); err != nil {
		return err
	}
	if c.stdio, err = makeStdio(c, log); err != nil {
		return err
	}
	if err := c.launch(ctx, func(child runtime.Stdio) (int, error) {
		opts.Stdio = child
		if checkpoint != "" {
			c.engine, err = c.restore(ctx, spec, opts, checkpoint)
		} else {
			c.engine, err = c.s.cfg.Engine.Create(ctx, c.id, spec, opts)
		}
		if err != nil {
			return 0, err
		}
		return c.engine.Pid(), nil
	}); err != nil {
		return err
	}
	if err := faultCreateLaunched.At(ctx); err != nil {
		return err
	}
	return c.made(checkpoint != "")
}

// made records that the container exists, and follows it from here on.
func (c *container) made(restored bool) error {
	s := c.s
	holder := s.hold.keeper()
	if err := c.holdFiles(); err != nil {
		return err // its output would end with this shim
	}
	s.oom.begin(c)
	phase := phaseCreated
	if restored {
		phase = phaseRunning
	}
	if err := c.update(func(r *record) {
		r.Phase, r.Restored, r.Process, r.Cgroups = phase, restored, c.init.record(), cgroupsOf(c.engine)
	}); err != nil {
		return err
	}
	c.op.Lock() // a caller that finds it in a list waits until it is followed
	defer c.op.Unlock()
	for !s.addHeldBy(holder, c) {
		holder = s.hold.keeper()
		if err := c.holdFiles(); err != nil {
			return err
		}
	}
	c.stdio.run()
	go c.awaitExit()
	return nil
}

// cgroupsOf returns the cgroups of a container, if its engine can report them.
func cgroupsOf(engine runtime.Container) map[string]string {
	if h, ok := engine.(runtime.CgroupHolder); ok {
		return h.CgroupPaths()
	}
	return nil
}

// undoTimeout bounds what is cleaned up after the request that asked for it.
const undoTimeout = 10 * time.Second

// maxIDLength keeps names of the keeper within bounds; containerd's limit is the same.
const maxIDLength = 76

// newProcess takes hold of a process that the engine has just started.
func (c *container) newProcess(pid int) (*process, error) {
	if r, ok := c.engine.(runtime.Remote); ok {
		return remoteProcess(r, pid), nil
	}
	return newProcess(pid)
}

// launch has the engine start init on the child's ends of stdio, and takes hold of it.
func (c *container) launch(ctx context.Context, start func(runtime.Stdio) (int, error)) error {
	child, err := c.stdio.childEnds()
	if err != nil {
		return err
	}
	defer child.close()
	pid, err := start(child.Stdio)
	if err != nil {
		return err
	}
	if c.init, err = c.newProcess(pid); err != nil {
		return err
	}
	c.init.awaitStdin(ctx, child, c.log)
	if child.console != nil {
		c.stdio.tty, err = child.console.Receive(ctx)
	}
	return err
}

// undoCreate removes what create had made until it failed.
func (c *container) undoCreate(log *containerlog.Log) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	c.s.oom.forget(c)
	if c.engine != nil {
		if err := insist(ctx, func() error { return c.engine.Delete(ctx, runtime.DeleteOptions{Force: true}) }); err != nil {
			c.log.Error("cannot undo the creation", "err", err)
			if c.init != nil {
				_ = c.init.signal(unix.SIGKILL) // otherwise init would never end
			}
		}
	}
	if c.init != nil {
		c.init.reap(ctx)
	}
	c.s.dropHeld(c.id)
	if log != nil {
		log.Discard()
	}
	if c.stdio != nil {
		c.stdio.close()
	}
	if err := insist(ctx, func() error { return os.RemoveAll(c.dir) }); err != nil {
		c.log.Error("cannot undo the creation", "err", err)
	}
}

// insist repeats f until it succeeds or ctx ends. A shortage, such as of descriptors, may pass, and
// no other call knows what to undo.
func insist(ctx context.Context, f func() error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// awaitExit waits for init's end and makes it known. One goroutine per container.
func (c *container) awaitExit() {
	defer close(c.watched)
	e, ok := c.init.waitUnreaped()
	if !ok {
		return
	}
	e.OOMKilled = c.s.oom.end(c, e.Code) // first of all, as systemd may be removing the cgroup
	c.drain()
	if err := c.update(func(r *record) {
		if r.Phase != phaseDeleting {
			r.Phase = phaseExited
		}
		r.Process = &processRecord{PID: c.init.pid, StartTime: c.init.startTime, Exit: &e}
	}); err != nil {
		c.log.Error("cannot record the exit", "err", err)
	}
	c.init.reapEnded()
	c.init.ended(e)
	if c.record().Phase == phaseDeleting {
		return // the end of what never ran is no event
	}
	if e.OOMKilled {
		c.s.events.publish(&api.Event{Kind: api.Event_OOM, Id: c.id, PodId: c.record().PodID, Pid: uint32(c.init.pid), OomKilled: true})
	}
	c.s.events.publish(c.exitEvent("", c.init))
}

// drainPatience is how long an exit waits for output that makes no progress into the log because
// the log's disk hangs.
const drainPatience = 2 * time.Second

// drain writes the rest of init's output to the log, so that the log is complete when the exit is
// reported. A disk that hangs does not hold up the exit: the rest is then drained in the
// background.
func (c *container) drain() {
	go func() {
		defer close(c.drained)
		c.stdio.drain()
	}()
	for before := c.stdio.moved(); ; {
		select {
		case <-c.drained:
			return
		case <-time.After(drainPatience):
		}
		now := c.stdio.moved()
		if now == before {
			c.log.Error("log does not accept the last output; reporting the exit without it")
			return
		}
		before = now
	}
}

// startGrace is how long a start goes on whose caller is gone: less than a daemon's
// recovery waits for it.
const startGrace = 2 * time.Second

func (c *container) start(ctx context.Context) error {
	c.op.Lock()
	defer c.op.Unlock()
	rec := c.record()
	if rec.Restored {
		return nil // it has gone on where it was
	}
	if c.init.exitState() != nil || rec.Phase == phaseDeleting {
		return fmt.Errorf("start container %s: %w", c.id, runtime.ErrNotRunning)
	}
	// A caller who goes away must not stop it half way: init, which has been woken
	// already, would fail in its last step, and that would look like the program's end.
	finish, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(startGrace, cancel) })()
	engine, err := c.alive()
	if err == nil {
		err = engine.Start(finish)
	}
	if errors.Is(err, runtime.ErrRunning) && rec.Phase == phaseCreated {
		err = nil // a shim was killed after it had released init; its caller tries again
	}
	if err != nil {
		return fmt.Errorf("start container %s: %w", c.id, err)
	}
	if err := c.update(func(r *record) {
		if r.Phase == phaseCreated { // it may have ended already
			r.Phase = phaseRunning
		}
	}); err != nil {
		c.log.Error("cannot record the start", "err", err)
	}
	return nil
}

// alive is the engine's container; ErrNotRunning if the engine has lost it.
func (c *container) alive() (runtime.Container, error) {
	if c.engine == nil {
		return nil, fmt.Errorf("container %s: the engine does not know it: %w", c.id, runtime.ErrNotRunning)
	}
	return c.engine, nil
}

// deleteTimeout limits a deletion without a deadline. The deletion can be repeated.
const deleteTimeout = 30 * time.Second

// delete frees everything. Exits before start and leftovers of a dead init are killed;
// a running container is ErrRunning.
func (c *container) delete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	c.op.Lock()
	defer c.op.Unlock()
	c.mu.Lock()
	phase, deleted := c.rec.Phase, c.deleted
	c.mu.Unlock()
	if deleted {
		return fmt.Errorf("delete container %s: %w", c.id, runtime.ErrNotFound)
	}
	if phase == phaseRunning && c.init.exitState() == nil {
		return fmt.Errorf("delete container %s: %w", c.id, runtime.ErrRunning)
	}
	if phase == phaseCreated {
		// Written down, because this may be cut short: that init was killed must not
		// look like the end of a program.
		if err := c.update(func(r *record) {
			if r.Phase == phaseCreated { // it may have ended by itself
				r.Phase = phaseDeleting
			}
		}); err != nil {
			return fmt.Errorf("delete container %s: %w", c.id, err)
		}
	}
	if c.engine != nil {
		if err := c.deleteEngine(ctx); err != nil {
			return fmt.Errorf("delete container %s: %w", c.id, err)
		}
	}
	select {
	case <-c.init.exited:
	case <-ctx.Done():
		return fmt.Errorf("delete container %s: init %d has not ended: %w", c.id, c.init.pid, ctx.Err())
	}
	select {
	case <-c.drained:
	case <-time.After(closePatience): // a log that hangs must not block the deletion
	case <-ctx.Done():
		return fmt.Errorf("delete container %s: write the last output to its log: %w", c.id, ctx.Err())
	}
	if err := faultDeleteEngine.At(ctx); err != nil {
		return fmt.Errorf("delete container %s: %w", c.id, err)
	}
	if err := c.removeExecs(ctx); err != nil {
		return fmt.Errorf("delete container %s: %w", c.id, err)
	}
	c.close()
	c.s.dropHeld(c.id)
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("delete container %s: %w", c.id, err)
	}
	c.mu.Lock()
	c.deleted = true
	c.mu.Unlock()
	c.s.forget(c.id)
	return nil
}

// deleteEngine makes the engine delete the container, even if its record has become unreadable
// since it was loaded.
func (c *container) deleteEngine(ctx context.Context) error {
	err := c.engine.Delete(ctx, runtime.DeleteOptions{Force: true})
	if !errors.Is(err, recordfile.ErrDamaged) {
		return err
	}
	e, ok := c.s.cfg.Engine.(runtime.Rebuilder)
	if !ok {
		return err
	}
	rec := c.record()
	again, rerr := e.Rebuild(ctx, c.id, rec.known())
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	return again.Delete(ctx, runtime.DeleteOptions{Force: true})
}

// close closes all files of the container, which runs on.
func (c *container) close() {
	for _, e := range c.allExecs() {
		e.close()
	}
	c.init.close()
	<-c.watched
	c.stdio.close()
}

// holdFiles puts copies of the files that must outlive the shim into the keeper. It fails as
// [hold.put] does.
func (c *container) holdFiles() error {
	c.holding.Lock()
	defer c.holding.Unlock()
	files := c.stdio.files()
	if c.init.exitState() == nil {
		files["pid"] = c.init.pidfd
	}
	return c.s.hold.put("c/"+c.id, files)
}

// dropHeld drops all that the keeper has of a container, execs that were cut short too.
func (s *Service) dropHeld(id string) {
	s.hold.drop("c/" + id)
	s.hold.dropAll("x/" + id + "/")
}

// update changes the record, in memory and on disk.
func (c *container) update(change func(*record)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.rec)
	if c.deleted {
		return nil
	}
	return writeRecord(filepath.Join(c.dir, recordName), c.rec, c.rec.kept)
}

func (c *container) persist() error { return c.update(func(*record) {}) }

func (c *container) record() record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

func (c *container) openLog() (*containerlog.Log, error) {
	if c.rec.LogPath == "" {
		return nil, nil
	}
	place, err := containerlog.PlaceOf(c.rec.LogDirectory, c.rec.LogPath)
	if err != nil {
		return nil, err
	}
	return containerlog.Open(place, c.rec.logLimit())
}
