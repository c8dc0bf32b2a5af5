package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/runtime"
)

// Adopt takes over the containers of an earlier shim in the state directory. It runs
// before Serve. What cannot be adopted is reported as exited, never lost.
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
			s.adopt(ctx, e.Name())
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return err
	}
	// Only when all are known: the end of one has others asked what was theirs (oomKills).
	for _, c := range s.all() {
		if c.init.exitState() == nil {
			go c.awaitExit()
		}
	}
	return nil
}

func (s *Service) adopt(ctx context.Context, id string) {
	log := s.log.With("container", id)
	rec, err := readRecord(s.dirOf(id))
	if err != nil || rec.Phase == phaseCreating || rec.Phase == phaseDeleting || rec.Process == nil {
		// The creation was cut short; its caller has seen an error and may repeat it.
		// So was the deletion of what had not been started.
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			log.Error("container with an unreadable record is removed", "error", err)
		}
		if err := s.rollBack(ctx, id); err != nil {
			log.Error("cannot roll back a container that was not started", "error", err)
		}
		return
	}
	c := newContainer(s, rec)
	held := s.hold.get("c/" + id)
	if c.engine, err = s.cfg.Engine.Load(ctx, id); err != nil {
		c.engine = nil
		log.Warn("the engine has lost the container", "error", err)
	}
	c.init = adoptProcess(c.engine, *rec.Process, held["pid"])
	delete(held, "pid")
	c.adoptPhase(ctx)
	c.adoptStdio(held)
	held.close() // what was not taken
	if c.init.exitState() == nil {
		s.oom.goOn(c)
	} else {
		c.stdio.out.close()
		close(c.watched)
	}
	c.adoptExecs(ctx)
	s.add(c)
	c.holdFiles()
	log.Info("container adopted", "pid", c.init.pid, "phase", c.record().Phase)
}

// adoptPhase finds out what the record cannot know: the shim may have been killed
// between letting init go and writing that down.
func (c *container) adoptPhase(ctx context.Context) {
	if c.engine == nil || c.rec.Phase != phaseCreated {
		return
	}
	if st, err := c.engine.State(ctx); err == nil && st.Status == specs.StateRunning {
		c.rec.Phase = phaseRunning
	}
}

func (c *container) adoptStdio(held named) {
	c.stdio = &stdio{c: c}
	if !c.rec.Log {
		c.stdio.tty, c.stdio.stdin = held["tty"], held[stdinName]
		delete(held, "tty")
		delete(held, stdinName)
		c.stdio.run()
		return
	}
	if held["log"] == nil {
		log, err := c.openLog()
		if err != nil {
			c.log.Error("container goes on without a log", "error", err)
		}
		c.stdio.log = log
	}
	if err := c.stdio.open(held); err != nil {
		c.log.Error("output of the container is lost", "error", err)
	}
	c.stdio.resume()
}

func (c *container) adoptExecs(ctx context.Context) {
	paths, _ := filepath.Glob(filepath.Join(c.dir, "exec-*.json")) // the pattern is valid
	for _, path := range paths {
		rec, err := readExecRecord(path)
		if err != nil || path != filepath.Join(c.dir, "exec-"+rec.ID+".json") || strings.Contains(rec.ID, "/") {
			c.log.Error("exec forgotten", "error", err)
			continue
		}
		if rec.Process == nil {
			c.adoptIntent(ctx, rec, path)
			continue
		}
		e := newExecution(c, rec)
		close(e.started)
		held := c.s.hold.get(e.key())
		e.proc = adoptProcess(c.engine, *rec.Process, held["pid"])
		e.stdin = held[stdinName]
		if e.tty = held["tty"]; e.tty != nil {
			e.relay = startRelay(e.tty, rec.Stdin, rec.Stdout, c.log)
		}
		c.s.execs.Add(1)
		c.execs[e.id] = e
		go e.awaitExit()
		e.bind()
	}
}

// rollBack removes what a creation that was cut short has left.
func (s *Service) rollBack(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, undoTimeout)
	defer cancel()
	c, err := s.cfg.Engine.Load(ctx, id)
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
