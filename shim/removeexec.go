package shim

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// removeExecs removes the execs of a container that has ended.
func (c *container) removeExecs(ctx context.Context) error {
	for _, e := range c.allExecs() {
		if err := e.remove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// remove forgets the exec; a process that still runs is killed. If a start under way does not end
// before ctx does, remove fails. It goes on in the background, for nothing else ends the exec then.
func (e *execution) remove(ctx context.Context) error {
	err := e.release(ctx) // first, because expire waits for a start in progress too
	if err == nil {
		if err = e.take(ctx); err != nil {
			go e.removeLater()
		}
	}
	if err != nil {
		return fmt.Errorf("delete exec %s in container %s: %w", e.id, e.c.id, err)
	}
	defer e.give()
	e.forget(ctx)
	return nil
}

func (e *execution) removeLater() {
	if e.take(e.c.s.serving) != nil {
		return // the next shim knows it only if it was started
	}
	defer e.give()
	ctx, cancel := context.WithTimeout(context.Background(), dying)
	defer cancel()
	e.forget(ctx)
}

// forget is called when the exec has been taken.
func (e *execution) forget(ctx context.Context) {
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
		if err := faultExecDropped.At(ctx); err != nil {
			e.c.log.Error("cannot remove record of exec", "exec", e.id, "err", err)
			return
		}
		if err := e.unrecord(); err != nil && !errors.Is(err, os.ErrNotExist) {
			e.c.log.Error("cannot forget exec", "exec", e.id, "err", err)
		}
	}
	e.close()
	e.c.mu.Lock()
	known := e.c.execs[e.id] == e
	if known {
		delete(e.c.execs, e.id)
		e.c.s.execs.Add(-1)
	}
	e.c.mu.Unlock()
	if known && e.process() == nil {
		close(e.started)
	}
}

// close closes all files; the process runs on.
func (e *execution) close() {
	_ = e.release(context.Background()) // expire waits for a start no longer than this shim serves
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
