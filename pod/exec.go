package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// ExecSync runs a command in a running container to its end. timeout 0 means none; when
// it passes, the command is killed and the error is context.DeadlineExceeded. What a stream has
// beyond MaxExecSyncOutput is read and dropped, as is output beyond the budget shared by all calls;
// the result reports the latter. The caller frees the result. req.Streams and TTY are not used.
func (m *Manager) ExecSync(ctx context.Context, req ExecRequest, timeout time.Duration) (ExecSyncResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	stdout, stderr := &keptOutput{budget: &m.execOutput}, &keptOutput{budget: &m.execOutput}
	req.TTY = false
	req.Streams = Streams{Stdout: stdout, Stderr: stderr}
	code, err := m.Exec(ctx, req)
	free := func() {
		stdout.free()
		stderr.free()
	}
	if err != nil {
		free()
		return ExecSyncResult{}, err
	}
	r := ExecSyncResult{ExitCode: code, free: free}
	r.Stdout, r.StdoutCut = stdout.result()
	r.Stderr, r.StderrCut = stderr.result()
	return r, nil
}

// Exec runs a command in a running container and copies its streams until it has ended;
// it returns the command's exit code. The command is killed when ctx ends.
// ErrPrecondition if the container does not run.
func (m *Manager) Exec(ctx context.Context, req ExecRequest) (exitCode int32, err error) {
	e, err := state.FindRunning(m.containers, req.Container)
	if err != nil {
		return 0, errdefs.During("exec in container", req.Container, err)
	}
	if len(req.Command) == 0 {
		return 0, errdefs.During("exec in container", e.ID, errdefs.Errorf(errdefs.ErrInvalid, "command is missing"))
	}
	p, err := m.execProcess(e, &req)
	if err != nil {
		return 0, errdefs.During("exec in container", e.ID, err)
	}
	err = m.life.Tie(ctx, func(ctx context.Context) error {
		exitCode, err = m.Shim.Exec(ctx, client.ExecRequest{
			PodID: e.Get().PodID, ID: e.ID, Process: p, Streams: req.Streams,
		})
		return err
	})
	return exitCode, errdefs.During("exec in container", e.ID, err)
}

// execProcess is the container's own process with another command: the same user,
// environment, capabilities and profile. It is read from the bundle each time: kept in
// memory it would cost every container a few kilobytes.
func (m *Manager) execProcess(e *state.ContainerEntry, req *ExecRequest) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	b, err := os.ReadFile(filepath.Join(m.containerDir().Of(e.ID), ocispec.FileName))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	p := spec.Process
	p.Args, p.Terminal = req.Command, req.TTY
	hasTerm := slices.ContainsFunc(p.Env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") })
	if req.TTY && !hasTerm {
		p.Env = append(p.Env, "TERM=xterm")
	}
	return p, nil
}

// Attach copies the streams of the container's own process until it has exited, the
// streams are gone or ctx ends. ErrPrecondition if the container does not run or tty is not
// what the container has.
func (m *Manager) Attach(ctx context.Context, id string, tty bool, s Streams) error {
	e, err := state.FindRunning(m.containers, id)
	if err != nil {
		return errdefs.During("attach to container", id, err)
	}
	if has := e.Get().Config.TTY; has != tty {
		return errdefs.During("attach to container", e.ID,
			errdefs.Errorf(errdefs.ErrPrecondition, "terminal %t is asked for, the container has %t", tty, has))
	}
	return errdefs.During("attach to container", e.ID, m.life.Tie(ctx, func(ctx context.Context) error {
		return m.Shim.Attach(ctx, e.Get().PodID, e.ID, s)
	}))
}

// CheckExec says whether Exec could begin now.
func (m *Manager) CheckExec(id string) error {
	_, err := state.FindRunning(m.containers, id)
	return errdefs.During("exec in container", id, err)
}

// CheckAttach says whether Attach could begin now.
func (m *Manager) CheckAttach(id string) error {
	_, err := state.FindRunning(m.containers, id)
	return errdefs.During("attach to container", id, err)
}

// ReopenLog has the container's log file closed and opened again, after it was renamed.
// ErrPrecondition unless the container runs.
func (m *Manager) ReopenLog(ctx context.Context, id string) error {
	e, err := state.FindRunning(m.containers, id)
	if err != nil {
		return errdefs.During("reopen log of container", id, err)
	}
	return errdefs.During("reopen log of container", e.ID, m.Shim.ReopenLog(ctx, e.Get().PodID, e.ID))
}
