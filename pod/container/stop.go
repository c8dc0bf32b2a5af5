package container

import (
	"context"
	"errors"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// stops are the container stops under way, by container id. A later call joins the
// one under way and can only make it end sooner.
type stops struct {
	mu    sync.Mutex
	under map[string]*stopping
}

type stopping struct {
	id     string
	sooner chan struct{} // has a token when at has moved
	done   chan struct{} // closed when err is set
	err    error

	mu sync.Mutex
	at time.Time // when SIGKILL is due
}

func newStops() *stops { return &stops{under: map[string]*stopping{}} }

// join returns the stop of id under way, its deadline moved forward to at if that is
// sooner, or a new one that the caller must carry out and finish.
func (s *stops) join(id string, at time.Time) (st *stopping, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.under[id]
	if !ok {
		st = &stopping{id: id, at: at, sooner: make(chan struct{}, 1), done: make(chan struct{})}
		s.under[id] = st
		return st, true
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if at.Before(st.at) {
		st.at = at
		select {
		case st.sooner <- struct{}{}:
		default:
		}
	}
	return st, false
}

func (s *stops) finish(st *stopping, err error) {
	s.mu.Lock()
	delete(s.under, st.id)
	s.mu.Unlock()
	st.err = err
	close(st.done)
}

func (s *stopping) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// Stop ends a container within grace. A call while another is under way joins it, and shortens its
// grace if its own ends sooner.
func (cs *Containers) Stop(ctx context.Context, e *state.ContainerEntry, grace time.Duration) error {
	if p := e.Get().Phase; p == state.ContainerExited || p == state.ContainerCreated {
		return nil
	}
	st, first := cs.stops.join(e.ID, time.Now().Add(grace))
	if first {
		// The grace may be the longest Duration.
		limit := min(grace, math.MaxInt64-stopLimit) + stopLimit
		go func() { // ends within the limit, or with the life
			cs.stops.finish(st, cs.Life.Run(context.WithoutCancel(ctx), limit, func(ctx context.Context) error {
				return cs.carryOutStop(ctx, e, st)
			}))
		}()
	}
	select {
	case <-st.done:
		return st.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// carryOutStop waits for its turn (a start under way comes to its end first) and ends
// the container by st's deadline.
func (cs *Containers) carryOutStop(ctx context.Context, e *state.ContainerEntry, st *stopping) error {
	if err := e.Turn.Take(ctx); err != nil {
		return err
	}
	defer e.Turn.Give()
	rec := e.Get()
	if !rec.Running() {
		return nil
	}
	over := cs.Exits.Of(e.ID, func() bool { return !e.Get().Running() })
	if at := st.deadline(); time.Until(at) > 0 {
		if err := e.Intend(func(r *state.ContainerRecord) { r.StopBy(at) }); err != nil {
			return err
		}
		if err := cs.FaultAt(ctx, faultStopContainerRecorded); err != nil {
			return err
		}
		if err := cs.signal(ctx, e, syscall.Signal(rec.StopSignal)); err != nil {
			return err
		}
		if ended, err := awaitGrace(ctx, over, st); ended || err != nil {
			return err
		}
	}
	if err := cs.FaultAt(ctx, faultStopContainerKill); err != nil {
		return err
	}
	if err := cs.signal(ctx, e, syscall.SIGKILL); err != nil {
		return err
	}
	return cs.Exits.AwaitKilled(ctx, over, func() (ended bool, err error) {
		err = cs.settle(ctx, e)
		return !e.Get().Running(), err
	})
}

// awaitGrace waits until the container has ended or st's deadline, which may move, is
// reached.
func awaitGrace(ctx context.Context, over <-chan struct{}, st *stopping) (ended bool, err error) {
	for {
		t := time.NewTimer(time.Until(st.deadline()))
		select {
		case <-over:
			t.Stop()
			return true, nil
		case <-t.C:
			return false, nil
		case <-st.sooner:
			t.Stop()
		case <-ctx.Done():
			t.Stop()
			return false, ctx.Err()
		}
	}
}

// signal sends sig to the container. If the shim says that nothing runs, what it knows
// of the end is noted, so that no one waits for an event that will not come.
func (cs *Containers) signal(ctx context.Context, e *state.ContainerEntry, sig syscall.Signal) error {
	rec := e.Get()
	err := cs.Shim.Kill(ctx, client.KillRequest{
		PodID: rec.PodID, ID: e.ID, Signal: sig,
		// Without a PID namespace of its own the kernel does not end the
		// other processes with init.
		All: sig == syscall.SIGKILL && rec.Config.SharesPID(),
	})
	if errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrNotFound) {
		return cs.settle(ctx, e)
	}
	return err
}

// settle notes the end of a container that the shim says does not run.
func (cs *Containers) settle(ctx context.Context, e *state.ContainerEntry) error {
	s, err := cs.Shim.Status(ctx, e.Get().PodID, e.ID)
	switch {
	case errors.Is(err, client.ErrNotFound):
		cs.Lost(e)
	case errors.Is(err, client.ErrDamaged) && ctx.Err() == nil:
		// The shim has it, and cannot say how it is: its record was damaged. It can be deleted
		// once it has ended.
		switch derr := cs.Exits.Forget(ctx, e.Get().PodID, e.ID); {
		case derr == nil:
			cs.Lost(e)
		case !errors.Is(derr, client.ErrRunning):
			return errors.Join(err, derr)
		}
	case err != nil: // the shim may know the end, and say so later
		return err
	case s.State == client.StateStopped:
		cs.Exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
	}
	return nil
}
