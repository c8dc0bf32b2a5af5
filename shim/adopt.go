package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
)

// Adopt takes over the containers of an earlier shim in the state directory. It runs
// after CheckRecords and before Serve. An unreadable file never ends a container: Adopt removes a
// container only if its record says that it was being created or deleted. A container that cannot
// be adopted is listed as unmanaged, with the reason, and left alone.
func (s *Service) Adopt(ctx context.Context) error {
	s.hold.connect()
	if _, err := s.cfg.Engine.List(ctx); err != nil { // clears up behind the earlier one
		return fmt.Errorf("adopt: %w", err)
	}
	entries, err := os.ReadDir(filepath.Join(s.cfg.StateDir, "c"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("adopt: %w", err)
	}
	var work errgroup.Group
	work.SetLimit(4)
	for _, e := range entries {
		work.Go(func() error {
			s.adoptOrLeave(ctx, e.Name())
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("adopt: %w", context.Cause(ctx))
	}
	// Only when all are known: the end of one has others asked what was theirs (oomKills).
	for _, c := range s.all() {
		if c.init.exitState() == nil {
			go c.awaitExit()
		}
	}
	return nil
}

// adoptOrLeave adopts a container, or lists it as unmanaged with the reason. c is nil if neither.
func (s *Service) adoptOrLeave(ctx context.Context, id string) (c *container) {
	log := s.log.With("container", id)
	c, err := s.adopt(ctx, id)
	switch {
	case err != nil:
		log.Error("cannot adopt container; leaving it unmanaged", "err", err)
		s.leave(id, err)
	case c == nil:
		s.forget(id) // the remains of a creation or a deletion were removed
	default:
		s.add(c)
		log.Info("container adopted", "pid", c.init.pid, "phase", c.record().Phase)
	}
	return c
}

// adopt returns the container, or nil if it was unfinished and has been removed. If it fails,
// nothing has changed.
func (s *Service) adopt(ctx context.Context, id string) (*container, error) {
	rec, err := readRecord(s.dirOf(id))
	if err == nil && rec.Process == nil && rec.Phase != phaseCreating && rec.Phase != phaseDeleting {
		err = fmt.Errorf("read record: no process: %w", recordfile.ErrDamaged)
	}
	if err != nil {
		if rec, err = s.reconstruct(ctx, id, err); errors.Is(err, errNeverRan) {
			rec.Phase, err = phaseCreating, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if rec.Phase == phaseCreating || rec.Phase == phaseDeleting {
		// The creation was cut short; its caller has seen an error and may repeat it.
		// So was the deletion of what had not been started.
		if err := s.rollBack(ctx, id); err != nil {
			return nil, fmt.Errorf("roll back the unfinished creation: %w", err)
		}
		return nil, nil
	}
	return s.takeOver(ctx, rec)
}

// takeOver builds the container from its record. It opens every file before it changes anything, so
// an adoption that fails because descriptors are used up can be repeated from the start.
func (s *Service) takeOver(ctx context.Context, rec record) (_ *container, err error) {
	c := newContainer(s, rec)
	held, err := s.hold.get("c/" + rec.ID)
	if err != nil {
		return nil, err
	}
	defer func() { held.close() }() // the files that were not used
	if c.engine, err = s.loadEngine(ctx, &c.rec); err != nil {
		return nil, err
	}
	if c.init, err = s.hold.adoptProcess(c.engine, *rec.Process, held["pid"]); err != nil {
		return nil, err
	}
	delete(held, "pid")
	defer func() {
		if err != nil {
			c.init.close()
		}
	}()
	if err = c.openHeld(held); err != nil {
		c.stdio.close()
		return nil, err
	}
	execs, intents, err := c.openExecs()
	if err != nil {
		c.stdio.close()
		return nil, err
	}
	c.adoptPhase(ctx)
	c.goOnWithStdio()
	if c.init.exitState() == nil {
		s.oom.goOn(c)
	} else {
		close(c.watched)
		go func() { // the exit may have been reported before the log was complete
			defer close(c.drained)
			c.stdio.drain()
		}()
	}
	c.adoptExecs(execs)
	for _, rec := range intents {
		c.adoptIntent(ctx, rec)
	}
	_ = c.holdFiles()
	return c, nil
}

// loadEngine loads the container in its engine. It returns nil if the engine has lost it for good.
func (s *Service) loadEngine(ctx context.Context, rec *record) (runtime.Container, error) {
	c, err := s.cfg.Engine.Load(ctx, rec.ID)
	if err == nil || transient.Is(err) || recordfile.Newer(err) != nil || ctx.Err() != nil {
		return c, err
	}
	log := s.log.With("container", rec.ID)
	log.Warn("engine has lost the container", "err", err)
	e, ok := s.cfg.Engine.(runtime.Rebuilder)
	if !ok || rec.Process == nil || rec.Process.Exit != nil && errors.Is(err, runtime.ErrNotFound) {
		return nil, nil // the engine may already have deleted a container that has ended
	}
	c, err = e.Rebuild(ctx, rec.ID, rec.known())
	if transient.Is(err) || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		log.Error("container can only be signalled", "err", err)
		return nil, nil
	}
	log.Warn("engine's record was rebuilt")
	return c, nil
}

// known is what the engine may need from a record.
func (r *record) known() runtime.Known {
	k := runtime.Known{Bundle: r.Bundle, CgroupPaths: r.Cgroups}
	if r.Process != nil {
		k.Pid, k.StartTime = r.Process.PID, r.Process.StartTime
	}
	return k
}

// adoptPhase finds out what the record cannot know: the shim may have been killed
// between letting init go and writing that down. Nor does it say whether a container is frozen.
func (c *container) adoptPhase(ctx context.Context) {
	if c.engine == nil || c.rec.Phase != phaseCreated && c.rec.Phase != phaseRunning {
		return
	}
	st, err := c.engine.State(ctx)
	if err != nil {
		return
	}
	switch st.Status {
	case specs.StateRunning:
		c.rec.Phase = phaseRunning
	case runtime.StatusPaused:
		c.rec.Phase, c.paused = phaseRunning, true
	}
}

// openHeld opens the files of stdio. It fails only if descriptors or memory are used up.
func (c *container) openHeld(held named) error {
	c.stdio = &stdio{c: c}
	if !c.rec.Log {
		c.stdio.tty, c.stdio.stdin = held["tty"], held[stdinName]
		delete(held, "tty")
		delete(held, stdinName)
		return nil
	}
	if held["log"] == nil {
		log, err := c.openLog()
		if transient.Is(err) {
			return err
		}
		if err != nil {
			c.log.Error("container goes on without a log", "err", err)
		}
		c.stdio.log = log
	}
	if err := c.stdio.open(held); transient.Is(err) {
		return err
	} else if err != nil {
		c.log.Error("output of the container is lost", "err", err)
	}
	return nil
}

func (c *container) goOnWithStdio() {
	if c.rec.Log {
		c.stdio.resume()
	} else {
		c.stdio.run()
	}
}

// openExecs loads the execs that have a record, but does not resume them. intents are the records
// of the execs that were being started.
func (c *container) openExecs() (all []*execution, intents []execRecord, err error) {
	ids, err := execRecords(c.dir)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		for _, e := range all {
			e.proc.close()
			(named{"tty": e.tty, stdinName: e.stdin}).close()
		}
	}()
	for _, id := range ids {
		e := newExecution(c, execRecord{ID: id})
		close(e.started)
		held, err := c.s.hold.get(e.key())
		if err != nil {
			return all, nil, err
		}
		if e.rec, err = c.execRecord(e, held); err == nil && e.rec.Process != nil {
			e.proc, err = c.s.hold.adoptProcess(c.engine, *e.rec.Process, held["pid"])
		}
		if err != nil || e.proc == nil {
			held.close()
			if err != nil {
				return all, nil, err
			}
			if e.rec.Owner != nil {
				intents = append(intents, e.rec)
			}
			continue
		}
		e.stdin, e.tty, e.recorded = held[stdinName], held["tty"], true
		all = append(all, e)
	}
	return all, intents, nil
}

// execRecord reads the record of an exec, or rebuilds it from the keeper's data. Process stays nil
// if the keeper does not hold the process either.
func (c *container) execRecord(e *execution, held named) (execRecord, error) {
	rec, err := readExecRecord(e.path())
	if err == nil || transient.Is(err) || recordfile.Newer(err) != nil {
		return rec, err
	}
	rec = execRecord{Version: recordVersion, ID: e.id, Terminal: held["tty"] != nil}
	if rec.Process, err = processOf(held["pid"]); err != nil {
		return rec, err
	}
	c.log.Error("record of exec was unreadable", "exec", e.id, "rebuilt", rec.Process != nil)
	if err := replaceBad(e.path(), rec, rec.Process != nil); err != nil {
		c.log.Error("cannot record exec", "exec", e.id, "err", err)
	}
	return rec, nil
}

func (c *container) adoptExecs(all []*execution) {
	// Add all before the first one continues: an exec whose owner has ended removes itself.
	c.mu.Lock()
	for _, e := range all {
		c.execs[e.id] = e
	}
	c.mu.Unlock()
	c.s.execs.Add(int64(len(all)))
	for _, e := range all {
		if e.tty != nil {
			e.relay = startRelay(e.tty, e.rec.Stdin, e.rec.Stdout, c.log)
		}
		go e.awaitExit()
		e.bind()
	}
}

// rollBack removes what a creation that was cut short has left.
func (s *Service) rollBack(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	c, err := s.cfg.Engine.Load(ctx, id)
	if errors.Is(err, recordfile.ErrDamaged) {
		if e, ok := s.cfg.Engine.(runtime.Rebuilder); ok {
			c, err = e.Rebuild(ctx, id, runtime.Known{})
		}
	}
	switch {
	case err == nil:
		err = c.Delete(ctx, runtime.DeleteOptions{Force: true})
	case errors.Is(err, runtime.ErrNotFound):
		err = nil
	}
	if err != nil {
		return err
	}
	s.dropHeld(id)
	return os.RemoveAll(s.dirOf(id))
}
