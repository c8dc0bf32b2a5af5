package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-project/coracle/internal/version"
	"github.com/coracle-project/coracle/runtime"
)

// The Task service, containerd.task.v3.Task. An empty exec id means the container's
// init. Errors get their codes in Service.intercept.

var _ task.TTRPCTaskService = (*Service)(nil)

// Create makes a container and leaves its init blocked; one that is made from a checkpoint
// goes on at once, and Start finds it running.
func (s *Service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	if r.ParentCheckpoint != "" {
		return nil, fmt.Errorf("create container %s from a checkpoint with a parent: %w", r.ID, errUnimplemented)
	}
	rec := record{
		ID: r.ID, Bundle: r.Bundle, Terminal: r.Terminal,
		StdinFIFO: r.Stdin, StdoutFIFO: r.Stdout, StderrFIFO: r.Stderr, Stdin: r.Stdin != "",
	}
	opts, err := createOptions(r.Options, &rec)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", r.ID, err)
	}
	undo, err := mountRootfs(r.Bundle, r.Rootfs)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", r.ID, err)
	}
	c, err := s.create(ctx, rec, opts, r.Checkpoint)
	if err != nil {
		undo()
		return nil, err
	}
	return &task.CreateTaskResponse{Pid: uint32(c.init.pid)}, nil
}

// Start lets init or an exec run.
func (s *Service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("start %w", err)
	}
	if r.ExecID == "" {
		if err := c.start(ctx); err != nil {
			return nil, err
		}
		return &task.StartResponse{Pid: uint32(c.init.pid)}, nil
	}
	e, err := c.exec(r.ExecID)
	if err != nil {
		return nil, fmt.Errorf("start %w", err)
	}
	pid, err := e.start(ctx)
	if err != nil {
		return nil, err
	}
	return &task.StartResponse{Pid: uint32(pid)}, nil
}

// Exec registers an additional process; Start runs it.
func (s *Service) Exec(_ context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("exec in %w", err)
	}
	rec := execRecord{Terminal: r.Terminal, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr}
	if _, err := c.addExec(r.ExecID, rec, r.Spec.GetValue(), false); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// Delete frees a container or an exec and says how it ended.
func (s *Service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	if err := s.created(ctx, r.ID); err != nil {
		return nil, fmt.Errorf("delete %w", err)
	}
	if u := s.notManaged(r.ID); u != nil && r.ExecID == "" {
		return s.deleteUnmanaged(ctx, u)
	}
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("delete %w", err)
	}
	p := c.init
	if r.ExecID == "" {
		if err := c.delete(ctx); err != nil {
			return nil, err
		}
	} else {
		e, err := c.exec(r.ExecID)
		if err != nil {
			return nil, fmt.Errorf("delete %w", err)
		}
		if p = e.process(); p != nil && p.exitState() == nil {
			return nil, fmt.Errorf("delete exec %s in container %s: %w", e.id, c.id, runtime.ErrRunning)
		}
		if err := e.remove(ctx); err != nil {
			return nil, err
		}
	}
	res := &task.DeleteResponse{}
	if p != nil {
		res.Pid = uint32(p.pid)
		if e := p.exitState(); e != nil {
			res.ExitStatus, res.ExitedAt = uint32(e.Code), timestamppb.New(e.At)
		}
	}
	return res, nil
}

// Kill signals init, an exec, or all processes of the container. What has ended
// already is NotFound, as containerd expects. An exec whose kill an earlier shim has begun is not:
// what it has started may be left.
func (s *Service) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	if u := s.notManaged(r.ID); u != nil && r.ExecID == "" {
		return &emptypb.Empty{}, s.killUnmanaged(ctx, u, unix.Signal(r.Signal), r.All)
	}
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("kill %w", err)
	}
	sig := unix.Signal(r.Signal)
	p := c.init
	var e *execution
	if r.ExecID != "" {
		if e, err = c.exec(r.ExecID); err != nil {
			return nil, fmt.Errorf("kill %w", err)
		}
		if p = e.settled(ctx); p == nil {
			return nil, fmt.Errorf("kill exec %s in container %s: %w", e.id, c.id, errPrecondition)
		}
	} else if r.All {
		engine, err := c.alive()
		if err != nil {
			return nil, fmt.Errorf("kill all: %w", err)
		}
		if err := engine.SignalAll(ctx, sig); err != nil {
			return nil, fmt.Errorf("kill all of container %s: %w", c.id, err)
		}
		return &emptypb.Empty{}, nil
	}
	if sig == unix.SIGKILL && e != nil {
		return &emptypb.Empty{}, e.kill(ctx, p)
	}
	if err := c.signal(ctx, p, sig); err != nil {
		kind := runtime.ErrNotFound
		if errors.Is(err, unix.EINVAL) {
			kind = errInvalid // no such signal
		}
		return nil, fmt.Errorf("kill container %s: %w: %w", c.id, kind, err)
	}
	if sig == unix.SIGKILL && c.isPaused() {
		// A frozen process does not die before it is thawed (cgroup v1).
		if err := c.resume(ctx); err != nil {
			return nil, err
		}
	}
	return &emptypb.Empty{}, nil
}

// signal sends a signal to init or an exec. The init of a container that another program has made
// takes it through that: its pid may be that of a sandbox.
func (c *container) signal(ctx context.Context, p *process, sig unix.Signal) error {
	if p != c.init || c.record().Handler == "" || p.exitState() != nil {
		return p.signal(sig)
	}
	engine, err := c.alive()
	if err != nil {
		return err
	}
	return engine.Signal(ctx, sig)
}

// State describes init or an exec.
func (s *Service) State(_ context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("state of %w", err)
	}
	if r.ExecID != "" {
		e, err := c.exec(r.ExecID)
		if err != nil {
			return nil, fmt.Errorf("state of %w", err)
		}
		return e.state(), nil
	}
	return c.state(), nil
}

func (c *container) state() *task.StateResponse {
	c.mu.Lock()
	rec, paused := c.rec, c.paused
	c.mu.Unlock()
	res := &task.StateResponse{
		ID: c.id, Bundle: rec.Bundle, Pid: uint32(c.init.pid), Terminal: rec.Terminal,
		Stdin: rec.StdinFIFO, Stdout: rec.StdoutFIFO, Stderr: rec.StderrFIFO,
	}
	switch {
	case rec.Phase == phaseCreated || rec.Phase == phaseDeleting:
		res.Status = tasktypes.Status_CREATED
	case paused:
		res.Status = tasktypes.Status_PAUSED
	default:
		res.Status = tasktypes.Status_RUNNING
	}
	if rec.Phase != phaseDeleting {
		setExit(res, c.init)
	}
	return res
}

func (e *execution) state() *task.StateResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	res := &task.StateResponse{
		ID: e.c.id, ExecID: e.id, Terminal: e.rec.Terminal, Status: tasktypes.Status_CREATED,
		Stdin: e.rec.Stdin, Stdout: e.rec.Stdout, Stderr: e.rec.Stderr,
	}
	if e.proc != nil {
		res.Pid, res.Status = uint32(e.proc.pid), tasktypes.Status_RUNNING
		setExit(res, e.proc)
	}
	return res
}

func setExit(res *task.StateResponse, p *process) {
	if e := p.exitState(); e != nil {
		res.Status, res.ExitStatus, res.ExitedAt = tasktypes.Status_STOPPED, uint32(e.Code), timestamppb.New(e.At)
	}
}

// Wait returns when init or an exec has ended. It may be called before the start.
func (s *Service) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("wait for %w", err)
	}
	p := c.init
	if r.ExecID != "" {
		e, err := c.exec(r.ExecID)
		if err != nil {
			return nil, fmt.Errorf("wait for %w", err)
		}
		select {
		case <-e.started:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if p = e.process(); p == nil {
			return nil, fmt.Errorf("wait for exec %s in container %s: %w", e.id, c.id, runtime.ErrNotFound)
		}
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e := p.exitState()
	return &task.WaitResponse{ExitStatus: uint32(e.Code), ExitedAt: timestamppb.New(e.At)}, nil
}

// Pids lists all processes of the container.
func (s *Service) Pids(ctx context.Context, r *task.PidsRequest) (*task.PidsResponse, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("pids of %w", err)
	}
	engine, err := c.alive()
	if err != nil {
		return nil, fmt.Errorf("pids of %w", err)
	}
	pids, err := engine.Pids(ctx)
	if err != nil {
		return nil, fmt.Errorf("pids of container %s: %w", c.id, err)
	}
	res := &task.PidsResponse{}
	for _, pid := range pids {
		res.Processes = append(res.Processes, &tasktypes.ProcessInfo{Pid: uint32(pid)})
	}
	return res, nil
}

// Pause freezes the container.
func (s *Service) Pause(ctx context.Context, r *task.PauseRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("pause %w", err)
	}
	c.op.Lock()
	defer c.op.Unlock()
	engine, err := c.alive()
	if err != nil {
		return nil, fmt.Errorf("pause %w", err)
	}
	if err := engine.Pause(ctx); err != nil {
		return nil, fmt.Errorf("pause container %s: %w", c.id, err)
	}
	c.setPaused(true)
	return &emptypb.Empty{}, nil
}

// Resume thaws the container.
func (s *Service) Resume(ctx context.Context, r *task.ResumeRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("resume %w", err)
	}
	return &emptypb.Empty{}, c.resume(ctx)
}

func (c *container) resume(ctx context.Context) error {
	c.op.Lock()
	defer c.op.Unlock()
	engine, err := c.alive()
	if err != nil {
		return fmt.Errorf("resume %w", err)
	}
	if err := engine.Resume(ctx); err != nil {
		return fmt.Errorf("resume container %s: %w", c.id, err)
	}
	c.setPaused(false)
	return nil
}

func (c *container) setPaused(paused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = paused
}

func (c *container) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.paused
}

// Update changes the container's resource limits.
func (s *Service) Update(ctx context.Context, r *task.UpdateTaskRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("update %w", err)
	}
	var res specs.LinuxResources
	if err := json.Unmarshal(r.Resources.GetValue(), &res); err != nil {
		return nil, fmt.Errorf("update container %s: %w: resources: %w", c.id, errInvalid, err)
	}
	c.op.Lock()
	defer c.op.Unlock()
	engine, err := c.alive()
	if err != nil {
		return nil, fmt.Errorf("update %w", err)
	}
	if err := engine.Update(ctx, &res); err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.id, err)
	}
	if err := faultUpdateChanged.At(ctx); err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.id, err)
	}
	return &emptypb.Empty{}, nil
}

// ResizePty sets a terminal's size.
func (s *Service) ResizePty(_ context.Context, r *task.ResizePtyRequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("resize terminal of %w", err)
	}
	if r.ExecID == "" {
		return &emptypb.Empty{}, c.stdio.resize(uint16(r.Width), uint16(r.Height))
	}
	e, err := c.exec(r.ExecID)
	if err != nil {
		return nil, fmt.Errorf("resize terminal of %w", err)
	}
	return &emptypb.Empty{}, e.resize(uint16(r.Width), uint16(r.Height))
}

// CloseIO ends a process's stdin as far as the shim holds it open.
func (s *Service) CloseIO(_ context.Context, r *task.CloseIORequest) (*emptypb.Empty, error) {
	c, err := s.get(r.ID)
	if err != nil {
		return nil, fmt.Errorf("close stdin of %w", err)
	}
	if !r.Stdin {
		return &emptypb.Empty{}, nil
	}
	if r.ExecID == "" {
		return &emptypb.Empty{}, c.stdio.closeInput()
	}
	e, err := c.exec(r.ExecID)
	if err != nil {
		return nil, fmt.Errorf("close stdin of %w", err)
	}
	e.closeInput()
	return &emptypb.Empty{}, nil
}

// Connect tells pids.
func (s *Service) Connect(_ context.Context, r *task.ConnectRequest) (*task.ConnectResponse, error) {
	res := &task.ConnectResponse{ShimPid: uint32(os.Getpid()), Version: version.Number()}
	if c, err := s.get(r.ID); err == nil {
		res.TaskPid = uint32(c.init.pid)
	}
	return res, nil
}

// Shutdown ends the shim if it has no container, or in any case with Now.
func (s *Service) Shutdown(_ context.Context, r *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	n := len(s.containers) + len(s.unmanaged)
	s.mu.Unlock()
	if n == 0 || r.Now {
		// After the answer is out: Done is acted on by Serve, which ends connections.
		defer s.once.Do(func() { close(s.done) })
	}
	return &emptypb.Empty{}, nil
}

// lastElement is the message name in a type URL.
func lastElement(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
