package pod

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
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

// StopContainer sends the container's stop signal, waits up to grace for its end, and
// then kills it; grace 0 kills at once. A call while another is under way joins it,
// and shortens its grace if its own ends sooner. Stopping what does not run, or is not
// known, succeeds.
func (m *Manager) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	e, err := m.containers.Find(id)
	if errors.Is(err, errdefs.ErrNotFound) {
		if u, ok := m.findUnmanaged(UnmanagedContainer, id); ok {
			return errdefs.During("stop container", u.ID, m.stopUnmanaged(ctx, u))
		}
		return nil
	}
	if err != nil {
		return err
	}
	return errdefs.During("stop container", e.ID, m.stopContainer(ctx, e, max(grace, 0)))
}

func (m *Manager) stopContainer(ctx context.Context, e *state.ContainerEntry, grace time.Duration) error {
	if p := e.Get().Phase; p == state.ContainerExited || p == state.ContainerCreated {
		return nil
	}
	st, first := m.stops.join(e.ID, time.Now().Add(grace))
	if first {
		go func() { // ends within grace+stopLimit, or with the life
			m.stops.finish(st, m.life.Run(context.WithoutCancel(ctx), grace+stopLimit, func(ctx context.Context) error {
				return m.carryOutStop(ctx, e, st)
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
func (m *Manager) carryOutStop(ctx context.Context, e *state.ContainerEntry, st *stopping) error {
	if err := e.Turn.Take(ctx); err != nil {
		return err
	}
	defer e.Turn.Give()
	rec := e.Get()
	if !rec.Running() {
		return nil
	}
	over := m.exits.Of(e.ID, func() bool { return !e.Get().Running() })
	if at := st.deadline(); time.Until(at) > 0 {
		if err := e.Intend(func(r *state.ContainerRecord) { r.StopBy(at) }); err != nil {
			return err
		}
		if err := m.faultAt(ctx, faultStopContainerRecorded); err != nil {
			return err
		}
		if err := m.signal(ctx, e, syscall.Signal(rec.StopSignal)); err != nil {
			return err
		}
		if ended, err := awaitGrace(ctx, over, st); ended || err != nil {
			return err
		}
	}
	if err := m.faultAt(ctx, faultStopContainerKill); err != nil {
		return err
	}
	if err := m.signal(ctx, e, syscall.SIGKILL); err != nil {
		return err
	}
	return m.exits.AwaitKilled(ctx, over, func() (ended bool, err error) {
		err = m.settle(ctx, e)
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
func (m *Manager) signal(ctx context.Context, e *state.ContainerEntry, sig syscall.Signal) error {
	rec := e.Get()
	err := m.Shim.Kill(ctx, client.KillRequest{
		PodID: rec.PodID, ID: e.ID, Signal: sig,
		// Without a PID namespace of its own the kernel does not end the
		// other processes with init.
		All: sig == syscall.SIGKILL && rec.Config.SharesPID(),
	})
	if errors.Is(err, client.ErrNotRunning) || errors.Is(err, client.ErrNotFound) {
		return m.settle(ctx, e)
	}
	return err
}

// settle notes the end of a container that the shim says does not run.
func (m *Manager) settle(ctx context.Context, e *state.ContainerEntry) error {
	s, err := m.Shim.Status(ctx, e.Get().PodID, e.ID)
	switch {
	case errors.Is(err, client.ErrNotFound):
		m.lost(e)
	case errors.Is(err, client.ErrDamaged) && ctx.Err() == nil:
		// The shim has it, and cannot say how it is: its record was damaged. It can be deleted
		// once it has ended.
		switch derr := m.exits.Forget(ctx, e.Get().PodID, e.ID); {
		case derr == nil:
			m.lost(e)
		case !errors.Is(derr, client.ErrRunning):
			return errors.Join(err, derr)
		}
	case err != nil: // the shim may know the end, and say so later
		return err
	case s.State == client.StateStopped:
		m.exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
	}
	return nil
}

// unknownExit is the exit code of a container whose end no one saw, as peers have it.
const unknownExit = 255
