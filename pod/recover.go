package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/shim/client"
)

// Start is recovery. It reads all records, asks the shims what is really there, and rolls every
// operation that was cut off back (making) or forward (stopping, removing):
//
//	record        shim says         becomes
//	making        anything          rolled back: nobody ever learned its id
//	created       –                 created
//	starting      unknown, created  created (the start can be tried again)
//	starting      running           running
//	starting      stopped           exited, with the shim's exit status
//	running       running           running
//	running       stopped           exited, with the shim's exit status
//	running       unknown           exited, code 255, reason "Unknown"
//	exited        anything          exited; freed in the shim
//	removing      anything          removed
//	too new       anything          an error before anything is touched (record.ErrVersion)
//	unreadable    anything          unmanaged: left as it is, see Unmanaged
//
// Only what says of itself that it was being made or removed is rolled back. What has no record
// is removed where our own removal can have left it, else it is unmanaged, too:
//
//	without a record                                    becomes
//	container's directory, nothing mounted, shim        removed: Remove deletes the record first,
//	  does not know it                                    after all that it stands for
//	container's directory, else                         unmanaged
//	pod's directory; no network, namespaces, files,     removed, likewise
//	  nor containers in the shim
//	pod's directory, else                               unmanaged
//	container in the shim, without any directory:
//	  its pod is unmanaged, or one of its containers
//	    is, or the shim does not know its pod           unmanaged
//	  its pod has no directory                          killed: both have been removed
//	  its pod is being made, stopped or removed         killed: so is all that is in it
//	  its pod stays, it was never let go or has ended   freed: nothing runs
//	  its pod stays, it runs                            unmanaged
//	container whose pod has no record                   unmanaged, unless being made or removed
//	network, namespaces, snapshot of no pod or          removed
//	  container above
//
// Of a pod whose own shim does not answer all stays as it is until it does; see recoverLate.
//
// Start returns when that is done, or after recoveryWait: a shim that hangs must not keep the
// daemon from showing what its records say. Recovery then goes on in the background: what was not
// recovered yet can be listed, and operations on it wait. What needs time anyway is always done in
// the background; only what callers could see is waited for. Before Start no other method but
// Close may be called.
func (m *Manager) Start(ctx context.Context) error {
	records := m.opts.Records
	if records == nil {
		var err error
		if records, err = ReadRecords(m.opts.StateDir); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	m.opts.Records = nil // they are as large as all entries
	for _, dir := range []string{m.podDir().Path, m.containerDir().Path} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	if err := m.Namespaces.Root(m.nsRoot()); err != nil {
		return fmt.Errorf("start pod manager: %w", err)
	}
	m.room.check()
	bare := m.index(records)
	// Exits that fell into the gap come as events too; from here on they find
	// their containers.
	m.life.start(m.watch)
	m.life.start(func(ctx context.Context) { m.recover(ctx, bare) })
	m.life.start(m.compareAfterReconnect)
	t := time.NewTimer(recoveryWait)
	defer t.Stop()
	select {
	case <-m.recovered:
		return nil
	case <-t.C:
		m.log.Warn("recovery goes on in the background", "err", m.Ready())
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start pod manager: %w", ctx.Err())
	}
}

const (
	// recoveryWait is how long Start waits for recovery.
	recoveryWait = 5 * time.Second
	// listLimit bounds one question for all containers.
	listLimit = 10 * time.Second
	// The shims are asked again after a pause that doubles.
	firstAsk, lastAsk = 50 * time.Millisecond, 5 * time.Second
	// recoverLimit bounds what is done for one pod or container at a time.
	recoverLimit = 10 * time.Second
)

// recover puts everything in order. The turns of all entries are taken; each is given when its
// entry has been recovered, or that has failed.
func (m *Manager) recover(ctx context.Context, b bare) {
	a, err := m.askShims(ctx)
	if err != nil {
		return // the life has ended
	}
	for podID, err := range a.silent {
		m.attempt("ask the pod's shim", podID, err)
	}
	inShim := a.inShim()
	b = m.leaveUnanswered(a, b)
	m.recoverContainers(ctx, inShim, a.answered)
	b = m.endStrays(ctx, a.known, b) // a pod that is to be removed is not before they are
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
		m.log.Warn("shims do not say what runs, asking again", "in", pause, "err", err)
		if err := sleep(ctx, pause); err != nil {
			return answers{}, err
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Ready says why nothing can be started yet, nil once recovery has asked the shims what runs.
func (m *Manager) Ready() error {
	select {
	case <-m.recovered:
		return nil
	default:
	}
	if err := m.waiting.Load(); err != nil && m.step.Load() == nil {
		return fail(ErrUnavailable, "recovery waits for the shim: %w", *err)
	}
	if step := m.step.Load(); step != nil {
		return fail(ErrUnavailable, "recovery is under way: %s", *step)
	}
	return fail(ErrUnavailable, "recovery is under way")
}

// awaitRecovery is for what makes pods and containers: recovery would take their parts for
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
	for _, e := range m.containers.each(func(r *containerRecord) bool { return of(r.PodID) }) {
		tasks.do("recover container", e.id, func() error {
			return recoverOne(ctx, m, "container", e, func(ctx context.Context, again bool) error {
				return m.recoverContainer(ctx, e, inShim[e.id] || again)
			})
		})
	}
	tasks.wait()
}

// recoverPods does the same for pods, after their containers.
func (m *Manager) recoverPods(ctx context.Context, inShim map[string]bool, of func(podID string) bool) {
	tasks := m.sideBySide()
	for _, e := range m.pods.each(func(*podRecord) bool { return true }) {
		if !of(e.id) {
			continue
		}
		tasks.do("recover pod", e.id, func() error {
			return recoverOne(ctx, m, "pod", e, func(ctx context.Context, again bool) error {
				return m.recoverPod(ctx, e, inShim[e.id] || again)
			})
		})
	}
	tasks.wait()
}

// recoverOne recovers an entry whose turn recovery has, and gives the turn. If that fails it is
// tried again in the background.
func recoverOne[T any](ctx context.Context, m *Manager, what string, e *entry[T], do func(ctx context.Context, again bool) error) error {
	bounded, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	err := do(bounded, false)
	e.turn.give()
	if err != nil && ctx.Err() == nil {
		m.clean.queue("unrecovered "+what, e.id, func(ctx context.Context) error {
			if err := e.turn.take(ctx); err != nil {
				return err
			}
			defer e.turn.give()
			if e.isGone() {
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
	s.tasks.SetLimit(atOnce)
	return s
}

func (s *steps) do(op, id string, step func() error) {
	s.tasks.Go(func() error {
		s.m.attempt(op, id, step())
		return nil
	})
}

func (s *steps) wait() { _ = s.tasks.Wait() } // no step returns an error

// RecoveryErrors is how many things recovery could not put in order; the log says which.
func (m *Manager) RecoveryErrors() int { return int(m.unrecovered.Load()) }

// attempt logs a step of the recovery that failed.
func (m *Manager) attempt(op, id string, err error) {
	if err != nil && m.life.ctx.Err() == nil {
		m.unrecovered.Add(1)
		m.log.Error("recovery incomplete", "op", op, "id", id, "err", err)
	}
}

// recovery is the Manager's part of it.
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

// compareAfterReconnect ends containers that a new shim does not know. The shim that died had
// them, and a shim writes a container's record before it says that the container runs: one that
// its successor does not know has been lost, and its end will not be told.
func (m *Manager) compareAfterReconnect(ctx context.Context) {
	select {
	case <-m.recovered: // what happens before, recovery sees
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
			m.log.Warn("containers not compared with a new shim's, trying again", "in", pause, "err", err)
			if sleep(ctx, pause) != nil {
				return
			}
		}
	}
}

// endLost notes the end of what runs according to its record and is unknown to the shims. What
// is starting is left to its start. What runs by its record stays in the shim until its end has
// been noted, so there is no moment at which it is missing for another reason.
func (m *Manager) endLost(ctx context.Context) error {
	running := m.containers.each(func(r *containerRecord) bool { return r.Phase == containerRunning })
	inits := m.pods.each(func(r *podRecord) bool { return r.InitPid != 0 })
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
		if inShim[e.id] || !a.answered(e.get().PodID) {
			continue
		}
		switch s, err := m.Shim.Status(bounded, e.get().PodID, e.id); {
		case errors.Is(err, client.ErrNotFound):
			m.lost(e)
		case err != nil:
			return err
		case s.State == client.StateStopped:
			m.exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		}
	}
	for _, e := range inits {
		if inShim[e.id] || !a.answered(e.id) {
			continue
		}
		if _, err := m.Shim.Status(bounded, e.id, e.id); errors.Is(err, client.ErrNotFound) {
			m.initExited(e)
		} else if err != nil {
			return err
		}
	}
	if len(a.silent) > 0 {
		return &client.UnansweredError{Pods: a.silent}
	}
	return nil
}

// lost notes that a container has ended while no one saw it.
func (m *Manager) lost(e *entry[containerRecord]) {
	if e.get().running() {
		m.log.Error("container lost: its shim does not know it", "id", e.id, "pod", e.get().PodID)
	}
	m.exited(e, unknownExit, time.Time{}, false)
}
