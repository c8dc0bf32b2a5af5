package container

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/checkpoint"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/plugins"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// Exit codes of containers that could not be started, as peers and shells have them.
const (
	exitStartFailed = 128
	exitNoProgram   = 127
)

// Start is Manager.StartContainer of package pod.
func (cs *Containers) Start(ctx context.Context, id string) error {
	e, err := cs.Containers.Find(id)
	if err != nil {
		return failure.During("start container", id, err)
	}
	return failure.During("start container", e.ID, cs.ops.Do(ctx, "start/"+e.ID, startLimit, func(ctx context.Context) error {
		if err := cs.AwaitRecovery(ctx); err != nil {
			return err // its root may be lost, and be made again
		}
		if err := e.Turn.Take(ctx); err != nil {
			return err
		}
		defer e.Turn.Give()
		return cs.startContainer(ctx, e)
	}))
}

// starting is one start of a container.
type starting struct {
	*Containers
	e     *state.ContainerEntry
	rec   *state.ContainerRecord // as it was before
	pod   *state.PodEntry
	begin time.Time
	watch state.Stopwatch
	// engine are the steps of the engine, a part of one of those of watch.
	engine []state.Step
}

func (cs *Containers) startContainer(ctx context.Context, e *state.ContainerEntry) error {
	s := &starting{Containers: cs, e: e, rec: e.Get(), begin: time.Now()}
	if s.rec.Phase != state.ContainerCreated {
		return errdefs.Errorf(errdefs.ErrPrecondition, "it is %s, only a created container can be started", s.rec.Phase)
	}
	if s.pod = cs.Pods.Exact(s.rec.PodID); s.pod == nil {
		return errdefs.Errorf(errdefs.ErrPrecondition, "its pod %s is gone", s.rec.PodID)
	}
	if err := e.Update(func(r *state.ContainerRecord) { r.Phase, r.StartedAt = state.ContainerStarting, s.begin }); err != nil {
		return cs.Reserve.Explain(err)
	}
	if err := s.check(); err != nil {
		return errors.Join(err, cs.unstart(e))
	}
	if err := s.run(ctx); err != nil {
		return cs.startFailed(ctx, e, err)
	}
	return cs.Notify.Container(ctx, plugins.ContainerStarted, e)
}

// check says whether the container can be started. It runs after the container's record says that
// it starts: a pod that stops now waits for our turn.
func (s *starting) check() error {
	if err := s.pod.Get().MustBeReady(); err != nil {
		return err
	}
	if err := s.targetStillRuns(&s.rec.Config); err != nil {
		return err
	}
	if s.rec.Checkpoint == "" {
		return nil
	}
	return checkpoint.CheckImages(s.rec.Checkpoint) // the files may have changed since the container was made
}

func (s *starting) stage(ctx context.Context, point fault.Point) error {
	s.Log.Debug("container starting", "container", s.e.ID, "stage", point, "after", time.Since(s.begin))
	return s.FaultAt(ctx, point)
}

// run has the shim start the container, and records that it runs.
func (s *starting) run(ctx context.Context) error {
	if err := s.stage(ctx, faultStartRecorded); err != nil {
		return err
	}
	if err := s.Notify.Container(ctx, plugins.ContainerStarts, s.e); err != nil {
		return err
	}
	request, err := s.request()
	if err != nil {
		return err
	}
	recorded := s.watch.Step("record the start", s.begin)
	launch := func() (int, error) { return s.launch(ctx, request, recorded) }
	pid, err := launch()
	if errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil {
		pid, err = s.relaunch(ctx, s.e, err, launch)
	}
	if err != nil {
		return err
	}
	if err := s.renamePod(s.pod, s.rec); err != nil {
		return err
	}
	if err := s.stage(ctx, faultStartStarted); err != nil {
		return err
	}
	return s.e.Update(func(r *state.ContainerRecord) {
		r.Steps, r.EngineSteps = s.watch.All(r.Steps), s.engine
		// Its end may have been noted already.
		if r.Phase == state.ContainerStarting {
			r.Phase, r.Pid = state.ContainerRunning, pid
		}
	})
}

// request is what the shim is asked to make.
func (s *starting) request() (client.LaunchRequest, error) {
	pod := &s.pod.Get().Config
	handler, err := s.Handlers.Of(pod)
	if err != nil {
		return client.LaunchRequest{}, err
	}
	return client.LaunchRequest{
		PodID: s.rec.PodID, ID: s.e.ID, Bundle: s.Dirs.Containers().Of(s.e.ID), Handler: handler.Runtime,
		Terminal: s.rec.Config.TTY, Stdin: s.rec.Config.Stdin, StdinOnce: s.rec.Config.StdinOnce,
		LogPath: s.rec.LogPath, LogDirectory: pod.LogDirectory, LogLimit: handler.LogLimit, Checkpoint: s.rec.Checkpoint,
	}, nil
}

// launch makes the container's process and has it execute the program.
func (s *starting) launch(ctx context.Context, r client.LaunchRequest, recorded time.Time) (pid int, err error) {
	done, err := s.Shim.Launch(ctx, r)
	if errors.Is(err, client.ErrExists) {
		// The last daemon began this start, and the shim had not finished it when this daemon
		// asked what it has.
		if err = s.Exits.End(ctx, r.PodID, r.ID); err == nil {
			done, err = s.Shim.Launch(ctx, r)
		}
	}
	if err != nil {
		return 0, err
	}
	s.watch.Between("make process (shim and engine)", recorded, done.Created)
	s.watch.Step("execute program", done.Created)
	s.engine = done.EngineSteps
	return done.Pid, nil
}

// relaunch continues a start that was interrupted by the shim's death. The next shim knows how far
// the start got. If the user's program never ran, the start is repeated once, so the program never
// runs twice.
func (cs *Containers) relaunch(ctx context.Context, e *state.ContainerEntry, cause error,
	launch func() (pid int, err error),
) (pid int, err error) {
	podID := e.Get().PodID
	s, err := cs.Shim.Status(ctx, podID, e.ID)
	switch {
	case errors.Is(err, client.ErrNotFound):
		if e.Get().Phase != state.ContainerStarting {
			return 0, nil // it has run, its end is noted, and the shim has been told to forget it
		}
	case err != nil:
		return 0, errors.Join(cause, err)
	case s.State == client.StateStopped:
		cs.Exited(e, s.ExitCode, s.ExitedAt, s.OOMKilled)
		return s.Pid, nil
	case s.State != client.StateCreated:
		return s.Pid, nil
	default:
		if err := cs.Exits.End(ctx, podID, e.ID); err != nil {
			return 0, errors.Join(cause, err)
		}
	}
	cs.Log.Warn("shim died during a start; repeating the start", "container", e.ID, "err", cause)
	if err := cs.FaultAt(ctx, faultStartAgain); err != nil {
		return 0, err
	}
	return launch()
}

// renamePod gives the pod its host name back after a restore, which brings that of the saved
// pod.
func (cs *Containers) renamePod(p *state.PodEntry, rec *state.ContainerRecord) error {
	pr := p.Get()
	if rec.Checkpoint == "" || pr.Namespaces.UTS == "" {
		return nil
	}
	name, err := pr.Config.UTSName()
	if err != nil {
		return err
	}
	return cs.Namespaces.SetHostname(pr.Namespaces.UTS, name)
}

// targetStillRuns says whether the process whose PID namespace the spec names by number
// is the target's still: if it has ended, the number may be another's by now, and be in
// the host's namespace.
func (cs *Containers) targetStillRuns(c *podconfig.Container) error {
	n := &c.Security.Namespaces
	if n.PID != podconfig.NamespaceTarget {
		return nil
	}
	t, err := cs.Containers.Find(n.TargetID)
	if err != nil {
		return fmt.Errorf("target container: %w", err)
	}
	if t.Get().Phase != state.ContainerRunning {
		return errdefs.Errorf(errdefs.ErrPrecondition, "target container %s has ended", t.ID)
	}
	return nil
}

// unstart takes the intent to start back: the shim has not been told.
func (cs *Containers) unstart(e *state.ContainerEntry) error {
	return e.Intend(func(r *state.ContainerRecord) { r.Phase, r.StartedAt = state.ContainerCreated, time.Time{} })
}

// startFailed ends a start that cannot go on: what the shim has is killed and freed, and
// the container is left exited with the cause. A start that the end of the daemon cuts off
// has not failed: the next one finds out how far it came.
func (cs *Containers) startFailed(ctx context.Context, e *state.ContainerEntry, cause error) error {
	if cs.Life.Context().Err() != nil {
		return cause
	}
	undo, cancel := life.Undoing(ctx)
	defer cancel()
	podID := e.Get().PodID
	if err := cs.Exits.End(undo, podID, e.ID); err != nil {
		// It may run, and must not while it counts as exited.
		cs.Clean.Queue("container that failed to start", e.ID, func(ctx context.Context) error { return cs.Exits.End(ctx, podID, e.ID) })
	}
	code := int32(exitStartFailed)
	if noProgram(cause) {
		code = exitNoProgram
	}
	err := e.Observe(func(r *state.ContainerRecord) {
		r.Exit(code, time.Now(), false)
		r.Reason, r.Message = state.StartError, cause.Error()
	})
	state.LogUnrecorded(cs.Log, e.ID, err)
	cs.Exits.Happened(e.ID)
	return cause
}

// noProgram says whether a start failed because the program is not in the image. The
// cause comes over the shim's protocol, which carries the text only.
func noProgram(err error) bool {
	s := err.Error()
	return strings.Contains(s, "executable file not found") ||
		strings.Contains(s, "exec") && strings.Contains(s, "no such file or directory")
}
