package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
)

// unmanaged is a container that could not be adopted. The shim touches it only on request: it can
// be signalled and, once it has ended, deleted. If the reason may pass, the shim retries the
// adoption. The next shim retries in any case.
type unmanaged struct {
	id, podID string
	reason    error
	op        sync.Mutex // adoption, Kill, Delete: one at a time
}

// The kinds of errors about such a container. For now means that its reason may pass: then the shim
// will adopt it, and know its end.
var (
	errUnmanaged       = errors.New("container is unmanaged")
	errUnmanagedForNow = errors.New("container is unmanaged for now")
)

// err is of one of these kinds alone: that something of the container was not found must not tell a
// caller that there is no container.
func (u *unmanaged) err() error {
	kind := errUnmanaged
	if transient.Is(u.reason) {
		kind = errUnmanagedForNow
	}
	return fmt.Errorf("container %s: %w: %v", u.id, kind, u.reason)
}

// leave records that a container could not be adopted.
func (s *Service) leave(id string, reason error) {
	u := &unmanaged{id: id, reason: reason}
	if rec, _, err := s.remembered(id); err == nil {
		u.podID = rec.PodID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.unmanaged[id]; old != nil {
		old.reason = reason
		if u.podID != "" {
			old.podID = u.podID
		}
		return
	}
	s.unmanaged[id] = u
}

// notManaged returns an unmanaged container by its id, or nil.
func (s *Service) notManaged(id string) *unmanaged {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unmanaged[id]
}

// waiting returns the unmanaged containers whose reason may pass.
func (s *Service) waiting() (all []*unmanaged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.unmanaged {
		if transient.Is(u.reason) {
			all = append(all, u)
		}
	}
	return all
}

// Pauses between attempts to adopt a container when descriptors or memory are used up.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// retry adopts containers whose adoption failed because descriptors or memory were used up, until
// none is left. The pauses grow.
func (s *Service) retry(ctx context.Context) {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		all := s.waiting()
		if len(all) == 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		for _, u := range all {
			s.adoptAgain(ctx, u)
		}
	}
}

func (s *Service) adoptAgain(ctx context.Context, u *unmanaged) {
	u.op.Lock()
	defer u.op.Unlock()
	if s.notManaged(u.id) != u || ctx.Err() != nil {
		return // the container was deleted meanwhile
	}
	c := s.adoptOrLeave(ctx, u.id)
	switch {
	case c == nil:
	case c.init.exitState() == nil:
		go c.awaitExit()
	case c.record().Phase != phaseDeleting:
		s.events.publish(c.exitEvent("", c.init)) // subscribers do not know of the exit yet
	}
}

// handle returns what is needed to end an unmanaged container.
func (s *Service) handle(ctx context.Context, u *unmanaged) (runtime.Container, error) {
	c, err := s.cfg.Engine.Load(ctx, u.id)
	if err == nil {
		return c, nil
	}
	e, ok := s.cfg.Engine.(runtime.Rebuilder)
	if !ok || transient.Is(err) || recordfile.Newer(err) != nil {
		return nil, err
	}
	rec, _, err := s.remembered(u.id)
	if err != nil {
		return nil, err
	}
	held, err := s.hold.get("c/" + u.id)
	if err != nil {
		return nil, err
	}
	defer held.close()
	if rec.Process == nil {
		if rec.Process, err = processOf(held["pid"]); err != nil {
			return nil, err
		}
	}
	return e.Rebuild(ctx, u.id, rec.known())
}

// killUnmanaged signals init, or all processes.
func (s *Service) killUnmanaged(ctx context.Context, u *unmanaged, sig unix.Signal, all bool) error {
	u.op.Lock()
	defer u.op.Unlock()
	c, err := s.handle(ctx, u)
	if err != nil {
		return fmt.Errorf("kill %w: %w", u.err(), err)
	}
	if pid, _ := initOf(c); !all && (pid != 0 || sig != unix.SIGKILL) {
		err = c.Signal(ctx, sig)
	} else {
		err = c.SignalAll(ctx, sig)
	}
	if errors.Is(err, runtime.ErrNotRunning) {
		err = fmt.Errorf("%w: %w", runtime.ErrNotFound, err) // as Kill does
	}
	if err != nil {
		return fmt.Errorf("kill %w: %w", u.err(), err)
	}
	return nil
}

// deleteUnmanaged removes an unmanaged container whose processes have ended or never started.
func (s *Service) deleteUnmanaged(ctx context.Context, u *unmanaged) (*task.DeleteResponse, error) {
	u.op.Lock()
	defer u.op.Unlock()
	if s.notManaged(u.id) != u {
		return nil, fmt.Errorf("delete container %s: %w", u.id, runtime.ErrNotFound)
	}
	c, err := s.handle(ctx, u)
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return nil, fmt.Errorf("delete %w: %w", u.err(), err)
	}
	pid := 0
	if err == nil {
		if pid, _ = initOf(c); runs(ctx, c, pid) {
			return nil, fmt.Errorf("delete %w: %w", u.err(), runtime.ErrRunning)
		}
		if err := c.Delete(ctx, runtime.DeleteOptions{Force: true}); err != nil {
			return nil, fmt.Errorf("delete %w: %w", u.err(), err)
		}
	}
	s.dropHeld(u.id)
	if err := os.RemoveAll(s.dirOf(u.id)); err != nil {
		return nil, fmt.Errorf("delete %w: %w", u.err(), err)
	}
	s.forget(u.id)
	return &task.DeleteResponse{Pid: uint32(pid), ExitStatus: unknownExit, ExitedAt: timestamppb.Now()}, nil
}

func initOf(c runtime.Container) (pid int, start uint64) {
	if r, ok := c.(runtime.Recorded); ok {
		return r.Init()
	}
	return 0, 0
}

// runs reports whether a container's program runs. If init is unknown, every process counts.
func runs(ctx context.Context, c runtime.Observable, init int) bool {
	if init == 0 {
		pids, err := c.Pids(ctx)
		return err != nil || len(pids) > 0
	}
	st, err := c.State(ctx)
	return err != nil || st.Status != specs.StateStopped && st.Status != specs.StateCreated
}
