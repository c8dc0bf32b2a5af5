// Package streams connects callers with containers and pods: exec, attach and port forwarding.
package streams

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
	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// Shim is what streams need of shim/client.Client.
type Shim interface {
	Exec(ctx context.Context, r client.ExecRequest) (exitCode int32, err error)
	Attach(ctx context.Context, podID, id string, s client.Streams) error
	ReopenLog(ctx context.Context, podID, id string) error
}

// Server runs commands in containers, attaches to them, and forwards ports of pods.
type Server struct {
	pods       *state.PodTable
	containers *state.ContainerTable
	shim       Shim
	life       *life.Life
	bundles    string // directory of the containers' bundles

	output outputBudget
}

// New makes a server. bundles is the directory that has a bundle for each container, by id.
func New(pods *state.PodTable, containers *state.ContainerTable, shim Shim, l *life.Life, bundles string) *Server {
	return &Server{
		pods: pods, containers: containers, shim: shim, life: l, bundles: bundles,
		output: outputBudget{most: execOutputBudget},
	}
}

// ExecRequest is a command in a running container.
type ExecRequest struct {
	Container string // id or unique prefix
	Command   []string
	TTY       bool
	Streams   client.Streams
}

// ExecSyncResult is what a command printed and how it ended.
type ExecSyncResult struct {
	Stdout, Stderr       []byte // each truncated at MaxExecSyncOutput bytes
	StdoutCut, StderrCut bool   // truncated earlier, because all calls together kept too much
	ExitCode             int32

	free func()
}

// Free returns this output's share of the budget to other calls. The result must not be used
// afterwards.
func (r *ExecSyncResult) Free() {
	if r.free != nil {
		r.free()
	}
}

// MaxExecSyncOutput bounds each stream of ExecSync (16 MiB, as peers do).
const MaxExecSyncOutput = 16 << 20

// ExecSync runs a command in a running container to its end. timeout 0 means none; when
// it passes, the command is killed and the error is context.DeadlineExceeded. What a stream has
// beyond MaxExecSyncOutput is read and dropped, as is output beyond the budget shared by all calls;
// the result reports the latter. The caller frees the result. req.Streams and TTY are not used.
func (v *Server) ExecSync(ctx context.Context, req ExecRequest, timeout time.Duration) (ExecSyncResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	stdout, stderr := &keptOutput{budget: &v.output}, &keptOutput{budget: &v.output}
	req.TTY = false
	req.Streams = client.Streams{Stdout: stdout, Stderr: stderr}
	code, err := v.Exec(ctx, req)
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
func (v *Server) Exec(ctx context.Context, req ExecRequest) (exitCode int32, err error) {
	e, err := state.FindRunning(v.containers, req.Container)
	if err != nil {
		return 0, failure.During("exec in container", req.Container, err)
	}
	if len(req.Command) == 0 {
		return 0, failure.During("exec in container", e.ID, errdefs.Errorf(errdefs.ErrInvalid, "command is missing"))
	}
	p, err := v.execProcess(e, &req)
	if err != nil {
		return 0, failure.During("exec in container", e.ID, err)
	}
	err = v.life.Tie(ctx, func(ctx context.Context) error {
		exitCode, err = v.shim.Exec(ctx, client.ExecRequest{
			PodID: e.Get().PodID, ID: e.ID, Process: p, Streams: req.Streams,
		})
		return err
	})
	return exitCode, failure.During("exec in container", e.ID, err)
}

// execProcess is the container's own process with another command: the same user,
// environment, capabilities and profile. It is read from the bundle each time: kept in
// memory it would cost every container a few kilobytes.
func (v *Server) execProcess(e *state.ContainerEntry, req *ExecRequest) (*specs.Process, error) {
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	b, err := os.ReadFile(filepath.Join(v.bundles, e.ID, ocispec.FileName))
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
func (v *Server) Attach(ctx context.Context, id string, tty bool, s client.Streams) error {
	e, err := state.FindRunning(v.containers, id)
	if err != nil {
		return failure.During("attach to container", id, err)
	}
	if has := e.Get().Config.TTY; has != tty {
		return failure.During("attach to container", e.ID,
			errdefs.Errorf(errdefs.ErrPrecondition, "terminal %t is asked for, the container has %t", tty, has))
	}
	return failure.During("attach to container", e.ID, v.life.Tie(ctx, func(ctx context.Context) error {
		return v.shim.Attach(ctx, e.Get().PodID, e.ID, s)
	}))
}

// CheckExec says whether Exec could begin now.
func (v *Server) CheckExec(id string) error {
	_, err := state.FindRunning(v.containers, id)
	return failure.During("exec in container", id, err)
}

// CheckAttach says whether Attach could begin now.
func (v *Server) CheckAttach(id string) error {
	_, err := state.FindRunning(v.containers, id)
	return failure.During("attach to container", id, err)
}

// ReopenLog has the container's log file closed and opened again, after it was renamed.
// ErrPrecondition unless the container runs.
func (v *Server) ReopenLog(ctx context.Context, id string) error {
	e, err := state.FindRunning(v.containers, id)
	if err != nil {
		return failure.During("reopen log of container", id, err)
	}
	return failure.During("reopen log of container", e.ID, v.shim.ReopenLog(ctx, e.Get().PodID, e.ID))
}
