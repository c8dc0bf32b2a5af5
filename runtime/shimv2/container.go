package shimv2

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/internal/base"
	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/validate"
)

// container is a handle, as base.Container is, whose processes are a shim's.
type container struct {
	base.Container
	engine *Engine
	own    own
}

var (
	_ runtime.Container = (*container)(nil)
	_ runtime.Remote    = (*container)(nil)
)

func (e *Engine) container(rec *base.Record, o own) *container {
	return &container{Container: base.Container{Store: e.store, Rec: rec}, engine: e, own: o}
}

func (c *container) call(ctx context.Context, method string, req, resp any) error {
	return c.engine.call(ctx, &c.own, method, req, resp)
}

// do is call for methods that answer nothing.
func (c *container) do(ctx context.Context, verb, method string, req any) error {
	err := c.call(ctx, method, req, &emptypb.Empty{})
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, errGone) {
		err = fmt.Errorf("%w: %w", runtime.ErrNotRunning, err)
	}
	if err != nil {
		return c.Fail(verb, err)
	}
	return nil
}

// ociTypes starts the type URLs that containerd gives to OCI objects in JSON.
const ociTypes = "types.containerd.io/opencontainers/runtime-spec/1/"

// Pid implements runtime.Container.
func (c *container) Pid() int {
	if _, ended := c.readExit(); ended {
		return 0
	}
	return c.Container.Pid()
}

// Start implements runtime.Container.
func (c *container) Start(ctx context.Context) error {
	s, err := c.State(ctx)
	if err != nil {
		return err
	}
	switch s.Status {
	case specs.StateCreated:
		err = c.call(ctx, "Start", &task.StartRequest{ID: c.ID()}, &task.StartResponse{})
	case specs.StateStopped:
		err = runtime.ErrNotRunning
	default:
		err = runtime.ErrRunning
	}
	if err != nil {
		return c.Fail("start", err)
	}
	return nil
}

// State implements runtime.Container. What the shim does not know has stopped.
func (c *container) State(ctx context.Context) (runtime.State, error) {
	if _, ended := c.readExit(); ended {
		return c.StateAs(specs.StateStopped), nil
	}
	var res task.StateResponse
	err := c.call(ctx, "State", &task.StateRequest{ID: c.ID()}, &res)
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, errGone) {
		return c.StateAs(specs.StateStopped), nil
	}
	if err != nil {
		return runtime.State{}, c.Fail("get state of", err)
	}
	switch res.Status {
	case tasktypes.Status_CREATED:
		return c.StateAs(specs.StateCreated), nil
	case tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		return c.StateAs(runtime.StatusPaused), nil
	case tasktypes.Status_STOPPED:
		return c.StateAs(specs.StateStopped), nil
	}
	return c.StateAs(specs.StateRunning), nil
}

// Signal implements runtime.Container.
func (c *container) Signal(ctx context.Context, sig syscall.Signal) error {
	return c.do(ctx, "signal", "Kill", &task.KillRequest{ID: c.ID(), Signal: uint32(sig)})
}

// SignalAll implements runtime.Container.
func (c *container) SignalAll(ctx context.Context, sig syscall.Signal) error {
	return c.do(ctx, "signal all processes of", "Kill", &task.KillRequest{ID: c.ID(), Signal: uint32(sig), All: true})
}

// Pause implements runtime.Container.
func (c *container) Pause(ctx context.Context) error {
	return c.do(ctx, "pause", "Pause", &task.PauseRequest{ID: c.ID()})
}

// Resume implements runtime.Container. Resuming what is not paused does nothing.
func (c *container) Resume(ctx context.Context) error {
	s, err := c.State(ctx)
	if err != nil {
		return err
	}
	if s.Status == specs.StateRunning {
		return nil
	}
	return c.do(ctx, "resume", "Resume", &task.ResumeRequest{ID: c.ID()})
}

// Update implements runtime.Container.
func (c *container) Update(ctx context.Context, r *specs.LinuxResources) error {
	if err := validate.Resources(r); err != nil {
		return c.Fail("update", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return c.Fail("update", err)
	}
	return c.do(ctx, "update", "Update", &task.UpdateTaskRequest{
		ID: c.ID(), Resources: &anypb.Any{TypeUrl: ociTypes + "LinuxResources", Value: b},
	})
}

// OOMKills implements runtime.OOMCounter: at least one if the shim has reported it, or it was seen
// when init ended.
func (c *container) OOMKills(ctx context.Context) (uint64, error) {
	n, err := c.Container.OOMKills(ctx)
	if x, _ := c.readExit(); x.OOM || c.engine.ranOut(c.ID()) {
		return max(n, 1), nil
	}
	return n, err
}

// Pids implements runtime.Container.
func (c *container) Pids(ctx context.Context) ([]int, error) {
	var res task.PidsResponse
	if err := c.call(ctx, "Pids", &task.PidsRequest{ID: c.ID()}, &res); err != nil {
		return nil, c.Fail("list processes of", err)
	}
	pids := make([]int, 0, len(res.Processes))
	for _, p := range res.Processes {
		pids = append(pids, int(p.Pid))
	}
	return pids, nil
}

// Delete implements runtime.Container.
func (c *container) Delete(ctx context.Context, opts runtime.DeleteOptions) error {
	now, err := c.Store.Load(c.ID())
	if errors.Is(err, runtime.ErrNotFound) || err == nil && !now.Created.Equal(c.Rec.Created) {
		return nil // it is gone, or another has its id
	}
	if err != nil {
		return c.Fail("delete", err)
	}
	if !opts.Force {
		s, err := c.State(ctx)
		if err != nil {
			return err
		}
		if s.Status != specs.StateStopped && s.Status != specs.StateCreated {
			return c.Fail("delete", runtime.ErrRunning)
		}
	}
	if err := c.removeAlone(ctx); err != nil {
		return c.Fail("delete", err)
	}
	return nil
}

// removeAlone is remove while no container of the group is made: that must not meet a shim that
// goes.
func (c *container) removeAlone(ctx context.Context) error {
	group, err := c.engine.takeGroup(ctx, &c.own)
	if err != nil {
		return err
	}
	defer group.give()
	return c.remove(ctx)
}

// remove kills what is left, has the shim forget the container, ends a shim without
// containers, and removes the record last. Nothing that has to be there need be there.
func (c *container) remove(ctx context.Context) error {
	if err := c.SignalAll(ctx, unix.SIGKILL); err != nil && !errors.Is(err, runtime.ErrNotRunning) {
		c.Store.Log().Warn("shim cannot kill a container that is deleted", "container", c.ID(), "err", err)
	}
	if c.Rec.Init.Pid != 0 || c.own.Address != "" {
		if _, err := c.finish(ctx); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
	}
	// Again, because it may have failed when init ended; and a shim does not end before its last
	// task.
	if err := c.deleteTask(ctx); err != nil {
		return fmt.Errorf("delete the shim's task: %w", err)
	}
	if err := c.endShim(ctx); err != nil {
		return err
	}
	if err := faultShimDeleted.At(ctx); err != nil {
		return err
	}
	if err := c.engine.removeBundle(c.ID()); err != nil {
		return err
	}
	if err := c.Remove(ctx); err != nil {
		return err
	}
	c.engine.forget(c.ID())
	return nil
}

// exited is how init ended, as it lies in exit.json.
type exited struct {
	Status int       `json:"status"`
	At     time.Time `json:"at"`
	OOM    bool      `json:"oom,omitempty"`
	// Unknown means that the status is not known.
	Unknown bool `json:"unknown,omitempty"`
}

func (c *container) exitFile() string { return filepath.Join(c.Dir(), "exit.json") }

// readExit returns how init ended, if that is known, and can be read now.
func (c *container) readExit() (x exited, ended bool) {
	x, ended, _ = c.loadExit()
	return x, ended
}

// loadExit is readExit with the reason why the file, which may be there, cannot be read.
func (c *container) loadExit() (x exited, ended bool, err error) {
	b, err := os.ReadFile(c.exitFile())
	if errors.Is(err, os.ErrNotExist) {
		return x, false, nil
	}
	if err != nil {
		return x, false, err
	}
	return x, json.Unmarshal(b, &x) == nil, nil
}

func (x exited) result() (runtime.Exit, error) {
	if x.Unknown {
		return runtime.Exit{}, fmt.Errorf("how it ended: %w", runtime.ErrNotFound)
	}
	return runtime.Exit{Status: x.Status, At: x.At}, nil
}

// finish waits for init's end, writes it down, and has the shim delete the task, which waits until
// all output has been copied.
func (c *container) finish(ctx context.Context) (runtime.Exit, error) {
	l := c.engine.live(c.ID())
	if err := l.ending.take(ctx); err != nil {
		return runtime.Exit{}, err
	}
	defer l.ending.give()
	x, ended, err := c.loadExit()
	if err != nil {
		return runtime.Exit{}, err // the shim may have forgotten what the file says
	}
	if ended {
		return x.result()
	}
	if _, err := os.Stat(c.Dir()); err != nil {
		return exited{Unknown: true}.result() // it has been deleted
	}
	var res task.WaitResponse
	err = c.call(ctx, "Wait", &task.WaitRequest{ID: c.ID()}, &res)
	x = exited{Status: int(res.ExitStatus), At: res.ExitedAt.AsTime()}
	switch {
	case errors.Is(err, errGone):
		if x, err = c.lost(ctx); err != nil {
			return runtime.Exit{}, err
		}
	case errors.Is(err, runtime.ErrNotFound):
		x = exited{Unknown: true, At: time.Now()}
	case err != nil:
		return runtime.Exit{}, err
	}
	// Its cgroups go with the task.
	if n, err := c.OOMKills(ctx); err == nil {
		x.OOM = n > 0
	}
	b, err := json.Marshal(x)
	if err == nil {
		err = atomicfile.Write(c.exitFile(), b, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) { // it is being deleted
		return runtime.Exit{}, err
	}
	// The end is known: a shim that hangs now must not keep it from being told.
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	if err := c.deleteTask(ctx); err != nil {
		c.Store.Log().Warn("shim does not delete a task that has ended", "container", c.ID(), "err", err)
	}
	return x.result()
}

// deleteTask has the shim delete the task, which waits until all output has been copied. One that
// is not there is deleted.
func (c *container) deleteTask(ctx context.Context) error {
	err := c.call(ctx, "Delete", &task.DeleteRequest{ID: c.ID()}, &task.DeleteResponse{})
	if errors.Is(err, runtime.ErrNotFound) || errors.Is(err, errGone) {
		return nil
	}
	return err
}

// lost is called when the shim has gone without its container's end being known: its program clears
// up behind it.
func (c *container) lost(ctx context.Context) (exited, error) {
	c.Store.Log().Warn("the shim of a container is gone", "container", c.ID(), "shim", c.own.Program)
	limited, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	_, err := c.engine.action(limited, c.own.Program, c.ID(), "delete", nil)
	if ctx.Err() != nil {
		return exited{}, err
	}
	if err != nil {
		c.Store.Log().Warn("the shim did not clear up", "container", c.ID(), "err", err)
	}
	return exited{Unknown: true, At: time.Now()}, nil
}

// endShim ends the shim if it has no other container, and waits for that.
func (c *container) endShim(ctx context.Context) error {
	if c.own.Address == "" {
		return nil
	}
	if shared, err := c.engine.shared(&c.own, c.ID()); shared || err != nil {
		return err
	}
	pid := c.engine.shimPid(ctx, &c.own, c.ID())
	fds := base.OpenPidfds([]int{pid}) // while the pid is the shim's
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	err := c.call(ctx, "Shutdown", &task.ShutdownRequest{ID: c.ID()}, &emptypb.Empty{})
	c.engine.disconnect(&c.own)
	if err == nil || errors.Is(err, errGone) { // it may end before it answers
		err = base.AwaitExits(ctx, fds)
	}
	if err != nil {
		return fmt.Errorf("end the shim: %w", err)
	}
	if len(fds) > 0 {
		_ = stuck.ReapFD(fds[0]) // it may be our child
	}
	if err := c.engine.removeSocket(&c.own); err != nil {
		return err
	}
	c.engine.dropGroup(&c.own)
	return nil
}

// shared says whether another container has the same shim. The caller tries again after an error: a
// shim must not end under its containers because their records could not be read for a moment.
func (e *Engine) shared(o *own, id string) (bool, error) {
	ids, err := e.store.List()
	if err != nil {
		return false, err
	}
	for _, other := range ids {
		if other == id {
			continue
		}
		rec, err := e.store.Load(other)
		if transient.Is(err) {
			return false, fmt.Errorf("find other containers of the shim: %w", err)
		}
		if err != nil || rec.Engine != Name {
			continue
		}
		var theirs own
		if json.Unmarshal(rec.Own, &theirs) == nil && theirs.Address == o.Address {
			return true, nil
		}
	}
	return false, nil
}
