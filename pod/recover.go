package pod

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/privatedir"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// Start is recovery. It reads all records, asks the shims for the actual state, and rolls every
// interrupted operation back (making) or forward (stopping, removing):
//
//	record        shim says         becomes
//	making        anything          rolled back: no one ever learned its id
//	created       –                 created
//	starting      unknown, created  created (the start can be tried again)
//	starting      running           running
//	starting      stopped           exited, with the shim's exit status
//	running       running           running
//	running       stopped           exited, with the shim's exit status
//	running       unknown           exited, code 255, reason "Unknown"
//	exited        anything          exited; freed in the shim
//	removing      anything          removed
//	too new       anything          an error before any change (*recordfile.NewerError)
//	unreadable    anything          unmanaged: left alone, see Unmanaged
//
// Only an object whose record says that it was being made or removed is rolled back. Without a
// record, what our own removal can have left is removed; the rest is unmanaged:
//
//	without a record                                    becomes
//	container's directory, nothing mounted, shim        removed: Remove deletes the record first,
//	  does not know it                                    after everything else
//	container's directory, else                         unmanaged
//	pod's directory; no network, namespaces, files,     removed, likewise
//	  nor containers in the shim
//	pod's directory, else                               unmanaged
//	container in the shim, without any directory:
//	  its pod is unmanaged, or one of its containers
//	    is, or the shim does not know its pod           unmanaged
//	  its pod has no directory                          killed: both have been removed
//	  its pod is being made, stopped or removed         killed with the pod
//	  its pod stays, it never started or has ended      freed: nothing runs
//	  its pod stays, it runs                            unmanaged
//	container whose pod has no record                   unmanaged, unless being made or removed
//	network, namespaces, snapshot of no pod or          removed
//	  container above
//
// If a pod's own shim does not answer, the pod stays as it is until it does; see recoverLate.
//
// Start returns when that is done, or after recoveryWait: a shim that hangs must not keep the
// daemon from showing what its records say. Recovery then continues in the background: objects that
// are not recovered yet can be listed, and operations on them wait. Slow cleanup always runs in the
// background; Start waits only for what callers could see. Before Start, only Close may be called.
func (m *Manager) Start(ctx context.Context) error {
	records := m.opts.Records
	if records == nil {
		var err error
		if records, err = state.ReadRecords(m.opts.StateDir); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	m.opts.Records = nil // free the memory: they are as large as all entries
	for _, dir := range []string{m.dirs.Pods().Path, m.dirs.Containers().Path} {
		if err := privatedir.Make(dir); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	if err := m.Namespaces.Root(m.dirs.Namespaces()); err != nil {
		return fmt.Errorf("start pod manager: %w", err)
	}
	m.reserve.Check()
	bare := m.index(records)
	// Exits that fell into the gap come as events too; from here on they find
	// their containers.
	m.life.Start(m.watch)
	m.life.Start(func(ctx context.Context) { m.recover(ctx, bare) })
	m.life.Start(m.compareAfterReconnect)
	t := time.NewTimer(recoveryWait)
	defer t.Stop()
	select {
	case <-m.recovered:
		return nil
	case <-t.C:
		m.log.Warn("recovery continues in the background", "err", m.Ready())
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start pod manager: %w", ctx.Err())
	}
}

const (
	// recoveryWait is how long Start waits for recovery.
	recoveryWait = 5 * time.Second
	// listLimit limits one request for all containers.
	listLimit = 10 * time.Second
	// The pause before the shims are asked again doubles each time.
	firstAsk, lastAsk = 50 * time.Millisecond, 5 * time.Second
	// recoverAtOnce is how many objects are recovered at a time.
	recoverAtOnce = 32
	// recoverLimit limits each recovery step of one pod or container.
	recoverLimit = 10 * time.Second
)

// recover recovers all objects. The turns of all entries are taken. Each is released when the
// recovery of its entry has succeeded or failed.
func (m *Manager) recover(ctx context.Context, b bare) {
	a, err := m.askShims(ctx)
	if err != nil {
		return // the daemon is stopping
	}
	for podID, err := range a.silent {
		m.attempt("ask the pod's shim", podID, err)
	}
	inShim := a.inShim()
	b = m.leaveUnanswered(a, b)
	m.recoverContainers(ctx, inShim, a.answered)
	b = m.endStrays(ctx, a.known, b) // before pods are removed: their stray containers must go first
	m.recoverPods(ctx, inShim, a.answered)
	m.removeStrays(ctx, a, b)
	m.logUnmanaged()
	close(m.recovered)
	m.recoverLate(ctx, a.silent)
}

// askShims asks for all containers until there is an answer. Shims of single pods may be missing
// in it.
func (m *Manager) askShims(ctx context.Context) (answers, error) {
	for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
		try, cancel := context.WithTimeout(ctx, listLimit)
		a, err := m.listShims(try)
		cancel()
		if err == nil {
			return a, nil
		}
		m.waiting.Store(&err)
		m.log.Warn("cannot list containers of shims; trying again", "in", pause, "err", err)
		if err := life.Sleep(ctx, pause); err != nil {
			return answers{}, err
		}
	}
}

// Ready returns why nothing can be started yet; nil once the shims have reported what runs.
func (m *Manager) Ready() error {
	select {
	case <-m.recovered:
		return nil
	default:
	}
	if err := m.waiting.Load(); err != nil && m.step.Load() == nil {
		return errdefs.Errorf(errdefs.ErrUnavailable, "recovery waits for the shim: %w", *err)
	}
	if step := m.step.Load(); step != nil {
		return errdefs.Errorf(errdefs.ErrUnavailable, "recovery is under way: %s", *step)
	}
	return errdefs.Errorf(errdefs.ErrUnavailable, "recovery is under way")
}

// awaitRecovery delays the creation of pods and containers. Recovery would take their parts for
// leftovers.
func (m *Manager) awaitRecovery(ctx context.Context) error {
	select {
	case <-m.recovered:
		return nil
	default:
	}
	select {
	case <-m.recovered:
		return nil
	case <-ctx.Done():
		return errors.Join(m.Ready(), ctx.Err())
	}
}

// recoverContainers rolls every container of these pods to where it belongs, many at a time. One
// that cannot be is logged and tried again: it must not keep the daemon from serving the others.
func (m *Manager) recoverContainers(ctx context.Context, inShim map[string]bool, of func(podID string) bool) {
	tasks := m.sideBySide()
	for _, e := range m.containers.Each(func(r *state.ContainerRecord) bool { return of(r.PodID) }) {
		tasks.do("recover container", e.ID, func() error {
			return recoverOne(ctx, m, "container", e, func(ctx context.Context, again bool) error {
				return m.containerLives.Recover(ctx, e, inShim[e.ID] || again)
			})
		})
	}
	tasks.wait()
}

// recoverPods recovers pods, after their containers.
func (m *Manager) recoverPods(ctx context.Context, inShim map[string]bool, of func(podID string) bool) {
	tasks := m.sideBySide()
	for _, e := range m.pods.Each(func(*state.PodRecord) bool { return true }) {
		if !of(e.ID) {
			continue
		}
		tasks.do("recover pod", e.ID, func() error {
			return recoverOne(ctx, m, "pod", e, func(ctx context.Context, again bool) error {
				return m.podLives.Recover(ctx, e, inShim[e.ID] || again)
			})
		})
	}
	tasks.wait()
}

// recoverOne recovers an entry whose turn recovery holds, and releases the turn. After a failure it
// tries again in the background.
func recoverOne[T any](ctx context.Context, m *Manager, what string, e *table.Entry[T],
	do func(ctx context.Context, again bool) error,
) error {
	bounded, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	err := do(bounded, false)
	e.Turn.Give()
	if err != nil && ctx.Err() == nil {
		m.clean.Queue("unrecovered "+what, e.ID, func(ctx context.Context) error {
			if err := e.Turn.Take(ctx); err != nil {
				return err
			}
			defer e.Turn.Give()
			if e.IsGone() {
				return nil
			}
			return do(ctx, true)
		})
	}
	return err
}

// steps are done side by side, so many at a time. One that fails is logged, and the
// others go on.
type steps struct {
	m     *Manager
	tasks errgroup.Group
}

func (m *Manager) sideBySide() *steps {
	s := &steps{m: m}
	s.tasks.SetLimit(recoverAtOnce)
	return s
}

func (s *steps) do(op, id string, step func() error) {
	s.tasks.Go(func() error {
		s.m.attempt(op, id, step())
		return nil
	})
}

func (s *steps) wait() { _ = s.tasks.Wait() } // no step returns an error

// RecoveryErrors counts the failed recovery steps. The log has the details.
func (m *Manager) RecoveryErrors() int { return int(m.unrecovered.Load()) }

// attempt logs a step of the recovery that failed.
func (m *Manager) attempt(op, id string, err error) {
	if err != nil && m.life.Context().Err() == nil {
		m.unrecovered.Add(1)
		m.log.Error("recovery incomplete", "op", op, "id", id, "err", err)
	}
}

// recovery is the recovery state of the Manager.
type recovery struct {
	recovered   chan struct{}          // closed when recovery has gone through everything once
	waiting     atomic.Pointer[error]  // why it has not begun
	step        atomic.Pointer[string] // what is under way at its end
	stepLimit   time.Duration          // of such a step
	unrecovered atomic.Int64           // steps that failed
	reconnected chan struct{}          // has a token when a shim was connected to again
	unmanaged   unmanagedSet
}

func newRecovery() recovery {
	return recovery{stepLimit: recoverLimit, recovered: make(chan struct{}), reconnected: make(chan struct{}, 1), unmanaged: newUnmanagedSet()}
}

// compareAfterReconnect marks as ended the containers that a new shim does not know. The previous
// shim had them. A shim writes a container's record before it reports that the container runs. So a
// container that the new shim does not know is lost, and its exit will not be reported.
func (m *Manager) compareAfterReconnect(ctx context.Context) {
	select {
	case <-m.recovered: // recovery sees what happens before this
	case <-ctx.Done():
		return
	}
	for {
		select {
		case <-m.reconnected:
		case <-ctx.Done():
			return
		}
		for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
			err := m.endLost(ctx)
			if err == nil {
				break
			}
			m.log.Warn("cannot compare containers with those of a new shim; trying again", "in", pause, "err", err)
			if life.Sleep(ctx, pause) != nil {
				return
			}
		}
	}
}

// endLost marks as ended each container that runs according to its record and that the shims do not
// know. A container that is starting is handled by its start. A running container stays in the shim
// until its end is recorded, so it is missing for no other reason.
func (m *Manager) endLost(ctx context.Context) error {
	running := m.containers.Each(func(r *state.ContainerRecord) bool { return r.Phase == state.ContainerRunning })
	inits := m.pods.Each(func(r *state.PodRecord) bool { return r.InitPid != 0 })
	if len(running)+len(inits) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	a, err := m.listShims(bounded)
	if err != nil {
		return err
	}
	inShim := a.inShim()
	for _, e := range running {
		if inShim[e.ID] || !a.answered(e.Get().PodID) {
			continue
		}
		switch s, err := m.Shim.Status(bounded, e.Get().PodID, e.ID); {
		case errors.Is(err, client.ErrNotFound):
			m.containerLives.Lost(e)
		case err != nil:
			return err
		case s.State == client.StateStopped:
			m.containerLives.Exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		}
	}
	for _, e := range inits {
		if inShim[e.ID] || !a.answered(e.ID) {
			continue
		}
		if _, err := m.Shim.Status(bounded, e.ID, e.ID); errors.Is(err, client.ErrNotFound) {
			m.podLives.InitExited(e)
		} else if err != nil {
			return err
		}
	}
	if len(a.silent) > 0 {
		return &client.UnansweredError{Pods: a.silent}
	}
	return nil
}
