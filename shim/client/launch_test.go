package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/coracle-project/coracle/shim/api"
)

// olderShim has neither Launch nor Run.
type olderShim struct {
	task.TTRPCTaskService
	calls []string
}

func (o *olderShim) Create(_ context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	var options api.CreateOptions
	if err := r.Options.UnmarshalTo(&options); err != nil {
		return nil, err
	}
	o.calls = append(o.calls, "create "+r.ID+" "+r.Bundle+" "+r.Checkpoint+" "+options.PodId)
	return &task.CreateTaskResponse{Pid: 7}, nil
}

func (o *olderShim) Exec(_ context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	o.calls = append(o.calls, "exec "+r.ID+" "+r.ExecID+" "+string(r.Spec.Value)+" "+r.Stdin+r.Stdout+r.Stderr)
	return &emptypb.Empty{}, nil
}

func (o *olderShim) Start(_ context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	o.calls = append(o.calls, "start "+r.ID+" "+r.ExecID)
	return &task.StartResponse{Pid: 1}, nil
}

// older is a connection to a shim of the Task API alone.
func older(t *testing.T) (*olderShim, *conn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "shim"))
	if err != nil {
		t.Fatal(err)
	}
	srv, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	o, served := &olderShim{}, make(chan error, 1)
	task.RegisterTTRPCTaskService(srv, o)
	go func() { served <- srv.Serve(t.Context(), listener) }()
	nc, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(nc)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), srv.Close()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != ttrpc.ErrServerClosed {
			t.Error(err)
		}
	})
	return o, &conn{Client: c, task: task.NewTTRPCTaskClient(c), shim: api.NewShimClient(c)}
}

func TestRunByAnOlderShim(t *testing.T) {
	o, k := older(t)
	res, err := k.run(t.Context(), &api.RunRequest{Id: "web", ExecId: "x", Process: []byte("{}"), Stdin: "i", Stdout: "o", Stderr: "e"})
	if want := []string{"exec web x {} ioe", "start web x"}; err != nil || res.Exited || !slices.Equal(o.calls, want) {
		t.Errorf("run: %v, %v; calls %q", res, err, o.calls)
	}
}

func TestLaunchByAnOlderShim(t *testing.T) {
	o, k := older(t)
	before := time.Now().UnixNano()
	res, err := k.launch(t.Context(), &api.LaunchRequest{Id: "web", Bundle: "/b", Checkpoint: "/c", Options: &api.CreateOptions{PodId: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"create web /b /c p", "start web "}; res.Pid != 7 || res.CreatedNs < before || !slices.Equal(o.calls, want) {
		t.Errorf("launch: %v; calls %q", res, o.calls)
	}
}

// slowShim says twice that a process still runs when it is asked to forget it.
type slowShim struct {
	task.TTRPCTaskService
	deletes int
	done    chan struct{}
}

func (*slowShim) Kill(context.Context, *task.KillRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (*slowShim) Wait(context.Context, *task.WaitRequest) (*task.WaitResponse, error) {
	return &task.WaitResponse{}, nil
}

func (s *slowShim) Delete(context.Context, *task.DeleteRequest) (*task.DeleteResponse, error) {
	if s.deletes++; s.deletes <= 2 {
		return nil, status.Error(codes.FailedPrecondition, "container is running")
	}
	close(s.done)
	return &task.DeleteResponse{}, nil
}

// Regression: on a busy machine a process that was killed took longer to end than its caller
// waited, and the shim kept its record as long as the container lived.
func TestExecIsForgottenInTheEnd(t *testing.T) {
	c, l, _ := fakeClient(t, 0)
	shim := &slowShim{done: make(chan struct{})}
	l.set(&conn{task: shim, lost: make(chan struct{})}, nil)
	<-c.discardExec(t.Context(), l, "web", "x", false)
	select {
	case <-shim.done:
	case <-time.After(time.Minute):
		t.Error("the shim was not asked again")
	}
}
