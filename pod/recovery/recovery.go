// Package recovery makes of what an earlier daemon left what its records say, and leaves alone what
// has none.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/privatedir"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/exits"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/reserve"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/pod/watch"
	"github.com/coracle-project/coracle/shim/client"
)

// Shim tells what there is, and forgets pods.
type Shim interface {
	Events() <-chan client.Event
	Status(ctx context.Context, podID, id string) (client.Status, error)
	List(ctx context.Context) (map[string][]string, error)
	DeletePod(ctx context.Context, podID string) error
}

// Network disconnects pods.
type Network interface {
	Teardown(ctx context.Context, p network.Pod) error
	// Recover tears down what was set up for pods that are not claimed, as far as that goes in
	// seconds; the rest stays in Leases.
	Recover(ctx context.Context, claimed []string) error
	// Leases are what pods have.
	Leases() []network.Lease
}

// Snapshots removes root file systems.
type Snapshots interface {
	Remove(ctx context.Context, id string) error
	// Recover removes every snapshot whose id is not claimed.
	Recover(ctx context.Context, claimed []string) error
}

// Namespaces prepares the directory of all pods' namespaces, and removes those of one.
type Namespaces interface {
	// Root prepares the directory that the directories of all pods are in.
	Root(dir string) error
	Remove(ctx context.Context, dir string) error
}

// Pods rolls pods to where they belong.
type Pods interface {
	Recover(ctx context.Context, e *state.PodEntry, initInShim bool) error
	InitExited(e *state.PodEntry)
}

// Containers rolls containers to where they belong, and notes what the shims tell of them.
type Containers interface {
	Recover(ctx context.Context, e *state.ContainerEntry, inShim bool) error
	Exited(e *state.ContainerEntry, code int32, at time.Time, oom bool)
	Lost(e *state.ContainerEntry)
	OutOfMemory(e *state.ContainerEntry)
}

// Config is what a Recoverer needs. All fields must be set, but for Records.
type Config struct {
	Pods       *state.PodTable
	Containers *state.ContainerTable
	Dirs       state.Layout
	Records    *state.Records // that were read; nil: Start reads them

	Shim           Shim
	Network        Network
	Snapshots      Snapshots
	Namespaces     Namespaces
	PodLives       Pods
	ContainerLives Containers

	Exits   *exits.Tracker
	SELinux *mac.SELinux
	Reserve *reserve.Reserve
	Created *state.Stamps
	Events  *watch.Watchers
	Life    *life.Life
	Clean   *life.Cleaner
	Log     *slog.Logger
	FaultAt func(ctx context.Context, point fault.Point) error
}

// Recoverer finds out what an earlier daemon left, and has it recovered, removed or left alone. It
// applies the shims' events.
type Recoverer struct {
	Config

	ops         *life.Joined           // by verb and id
	recovered   chan struct{}          // closed when recovery has gone through everything once
	waiting     atomic.Pointer[error]  // why it has not begun
	step        atomic.Pointer[string] // what is under way at its end
	unrecovered atomic.Int64           // steps that failed
	reconnected chan struct{}          // has a token when a shim was connected to again
	unmanaged   unmanagedSet
}

// New makes a Recoverer. It does no I/O; Start does.
func New(c Config) *Recoverer {
	return &Recoverer{
		Config: c, ops: life.NewJoined(c.Life), recovered: make(chan struct{}),
		reconnected: make(chan struct{}, 1), unmanaged: newUnmanagedSet(),
	}
}

// Limits of operations that have no deadline of their own.
const (
	stopLimit   = 2 * time.Minute
	removeLimit = 2 * time.Minute
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
// Start returns when that is done, or after StartWait: a shim that hangs must not keep the
// daemon from showing what its records say. Recovery then continues in the background: objects that
// are not recovered yet can be listed, and operations on them wait. Slow cleanup always runs in the
// background; Start waits only for what callers could see. Before Start, only Close may be called.
func (rv *Recoverer) Start(ctx context.Context) error {
	records := rv.Records
	if records == nil {
		var err error
		if records, err = state.ReadRecords(string(rv.Dirs)); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	rv.Records = nil // free the memory: they are as large as all entries
	for _, dir := range []string{rv.Dirs.Pods().Path, rv.Dirs.Containers().Path} {
		if err := privatedir.Make(dir); err != nil {
			return fmt.Errorf("start pod manager: %w", err)
		}
	}
	if err := rv.Namespaces.Root(rv.Dirs.Namespaces()); err != nil {
		return fmt.Errorf("start pod manager: %w", err)
	}
	rv.Reserve.Check()
	bare := rv.index(records)
	// Exits that fell into the gap come as events too; from here on they find
	// their containers.
	rv.Life.Start(rv.watch)
	rv.Life.Start(func(ctx context.Context) { rv.recover(ctx, bare) })
	rv.Life.Start(rv.compareAfterReconnect)
	t := time.NewTimer(StartWait)
	defer t.Stop()
	select {
	case <-rv.recovered:
		return nil
	case <-t.C:
		rv.Log.Warn("recovery continues in the background", "err", rv.Ready())
		return nil
	case <-ctx.Done():
		return fmt.Errorf("start pod manager: %w", ctx.Err())
	}
}

const (
	// StartWait is how long Start waits for recovery.
	StartWait = 5 * time.Second
	// listLimit limits one request for all containers.
	listLimit = 10 * time.Second
	// The pause before the shims are asked again doubles each time.
	firstAsk, lastAsk = 50 * time.Millisecond, 5 * time.Second
	// recoverAtOnce is how many objects are recovered at a time.
	recoverAtOnce = 32
	// recoverLimit limits each recovery step of one pod or container, and each of those at the end.
	recoverLimit = 10 * time.Second
)

// recover recovers all objects. The turns of all entries are taken. Each is released when the
// recovery of its entry has succeeded or failed.
func (rv *Recoverer) recover(ctx context.Context, b bare) {
	a, err := rv.askShims(ctx)
	if err != nil {
		return // the daemon is stopping
	}
	for podID, err := range a.silent {
		rv.attempt("ask the pod's shim", podID, err)
	}
	inShim := a.inShim()
	b = rv.leaveUnanswered(a, b)
	rv.recoverContainers(ctx, inShim, a.answered)
	b = rv.endStrays(ctx, a.known, b) // before pods are removed: their stray containers must go first
	rv.recoverPods(ctx, inShim, a.answered)
	rv.removeStrays(ctx, a, b)
	rv.logUnmanaged()
	close(rv.recovered)
	rv.recoverLate(ctx, a.silent)
}

// askShims asks for all containers until there is an answer. Shims of single pods may be missing
// in it.
func (rv *Recoverer) askShims(ctx context.Context) (answers, error) {
	for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
		try, cancel := context.WithTimeout(ctx, listLimit)
		a, err := rv.listShims(try)
		cancel()
		if err == nil {
			return a, nil
		}
		rv.waiting.Store(&err)
		rv.Log.Warn("cannot list containers of shims; trying again", "in", pause, "err", err)
		if err := life.Sleep(ctx, pause); err != nil {
			return answers{}, err
		}
	}
}

// Ready returns why nothing can be started yet; nil once the shims have reported what runs.
func (rv *Recoverer) Ready() error {
	select {
	case <-rv.recovered:
		return nil
	default:
	}
	if err := rv.waiting.Load(); err != nil && rv.step.Load() == nil {
		return errdefs.Errorf(errdefs.ErrUnavailable, "recovery waits for the shim: %w", *err)
	}
	if step := rv.step.Load(); step != nil {
		return errdefs.Errorf(errdefs.ErrUnavailable, "recovery is under way: %s", *step)
	}
	return errdefs.Errorf(errdefs.ErrUnavailable, "recovery is under way")
}

// Await delays the creation of pods and containers. Recovery would take their parts for
// leftovers.
func (rv *Recoverer) Await(ctx context.Context) error {
	select {
	case <-rv.recovered:
		return nil
	default:
	}
	select {
	case <-rv.recovered:
		return nil
	case <-ctx.Done():
		return errors.Join(rv.Ready(), ctx.Err())
	}
}

// recoverContainers rolls every container of these pods to where it belongs, many at a time. One
// that cannot be is logged and tried again: it must not keep the daemon from serving the others.
func (rv *Recoverer) recoverContainers(ctx context.Context, inShim map[string]bool, of func(podID string) bool) {
	tasks := rv.sideBySide()
	for _, e := range rv.Containers.Each(func(r *state.ContainerRecord) bool { return of(r.PodID) }) {
		tasks.do("recover container", e.ID, func() error {
			return recoverOne(ctx, rv, "container", e, func(ctx context.Context, again bool) error {
				return rv.ContainerLives.Recover(ctx, e, inShim[e.ID] || again)
			})
		})
	}
	tasks.wait()
}

// recoverPods recovers pods, after their containers.
func (rv *Recoverer) recoverPods(ctx context.Context, inShim map[string]bool, of func(podID string) bool) {
	tasks := rv.sideBySide()
	for _, e := range rv.Pods.Each(func(*state.PodRecord) bool { return true }) {
		if !of(e.ID) {
			continue
		}
		tasks.do("recover pod", e.ID, func() error {
			return recoverOne(ctx, rv, "pod", e, func(ctx context.Context, again bool) error {
				return rv.PodLives.Recover(ctx, e, inShim[e.ID] || again)
			})
		})
	}
	tasks.wait()
}

// recoverOne recovers an entry whose turn recovery holds, and releases the turn. After a failure it
// tries again in the background.
func recoverOne[T any](ctx context.Context, rv *Recoverer, what string, e *table.Entry[T],
	do func(ctx context.Context, again bool) error,
) error {
	bounded, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	err := do(bounded, false)
	e.Turn.Give()
	if err != nil && ctx.Err() == nil {
		rv.Clean.Queue("unrecovered "+what, e.ID, func(ctx context.Context) error {
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
	rv    *Recoverer
	tasks errgroup.Group
}

func (rv *Recoverer) sideBySide() *steps {
	s := &steps{rv: rv}
	s.tasks.SetLimit(recoverAtOnce)
	return s
}

func (s *steps) do(op, id string, step func() error) {
	s.tasks.Go(func() error {
		s.rv.attempt(op, id, step())
		return nil
	})
}

func (s *steps) wait() { _ = s.tasks.Wait() } // no step returns an error

// Errors counts the failed recovery steps. The log has the details.
func (rv *Recoverer) Errors() int { return int(rv.unrecovered.Load()) }

// attempt logs a step of the recovery that failed.
func (rv *Recoverer) attempt(op, id string, err error) {
	if err != nil && rv.Life.Context().Err() == nil {
		rv.unrecovered.Add(1)
		rv.Log.Error("recovery incomplete", "op", op, "id", id, "err", err)
	}
}

// compareAfterReconnect marks as ended the containers that a new shim does not know. The previous
// shim had them. A shim writes a container's record before it reports that the container runs. So a
// container that the new shim does not know is lost, and its exit will not be reported.
func (rv *Recoverer) compareAfterReconnect(ctx context.Context) {
	select {
	case <-rv.recovered: // recovery sees what happens before this
	case <-ctx.Done():
		return
	}
	for {
		select {
		case <-rv.reconnected:
		case <-ctx.Done():
			return
		}
		for pause := firstAsk; ; pause = min(2*pause, lastAsk) {
			err := rv.EndLost(ctx)
			if err == nil {
				break
			}
			rv.Log.Warn("cannot compare containers with those of a new shim; trying again", "in", pause, "err", err)
			if life.Sleep(ctx, pause) != nil {
				return
			}
		}
	}
}

// EndLost marks as ended each container that runs according to its record and that the shims do not
// know. A container that is starting is handled by its start. A running container stays in the shim
// until its end is recorded, so it is missing for no other reason.
func (rv *Recoverer) EndLost(ctx context.Context) error {
	running := rv.Containers.Each(func(r *state.ContainerRecord) bool { return r.Phase == state.ContainerRunning })
	inits := rv.Pods.Each(func(r *state.PodRecord) bool { return r.InitPid != 0 })
	if len(running)+len(inits) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	a, err := rv.listShims(bounded)
	if err != nil {
		return err
	}
	inShim := a.inShim()
	for _, e := range running {
		if inShim[e.ID] || !a.answered(e.Get().PodID) {
			continue
		}
		switch s, err := rv.Shim.Status(bounded, e.Get().PodID, e.ID); {
		case errors.Is(err, client.ErrNotFound):
			rv.ContainerLives.Lost(e)
		case err != nil:
			return err
		case s.State == client.StateStopped:
			rv.ContainerLives.Exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		}
	}
	for _, e := range inits {
		if inShim[e.ID] || !a.answered(e.ID) {
			continue
		}
		if _, err := rv.Shim.Status(bounded, e.ID, e.ID); errors.Is(err, client.ErrNotFound) {
			rv.PodLives.InitExited(e)
		} else if err != nil {
			return err
		}
	}
	if len(a.silent) > 0 {
		return &client.UnansweredError{Pods: a.silent}
	}
	return nil
}
