package client

import (
	"context"
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

// olderShim has no Run.
type olderShim struct {
	task.TTRPCTaskService
	calls []string
}

func (o *olderShim) Exec(_ context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	o.calls = append(o.calls, "exec "+r.ID+" "+r.ExecID+" "+string(r.Spec.Value)+" "+r.Stdin+r.Stdout+r.Stderr)
	return &emptypb.Empty{}, nil
}

func (o *olderShim) Start(_ context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	o.calls = append(o.calls, "start "+r.ID+" "+r.ExecID)
	return &task.StartResponse{Pid: 1}, nil
}

func TestRunByAnOlderShim(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "shim"))
	if err != nil {
		t.Fatal(err)
	}
	srv, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	older, served := &olderShim{}, make(chan error, 1)
	task.RegisterTTRPCTaskService(srv, older)
	go func() { served <- srv.Serve(t.Context(), listener) }()
	nc, err := net.Dial("unix", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(nc)
	k := &conn{Client: c, task: task.NewTTRPCTaskClient(c), shim: api.NewShimClient(c)}
	res, err := k.run(t.Context(), &api.RunRequest{Id: "web", ExecId: "x", Process: []byte("{}"), Stdin: "i", Stdout: "o", Stderr: "e"})
	if want := []string{"exec web x {} ioe", "start web x"}; err != nil || res.Exited || !slices.Equal(older.calls, want) {
		t.Errorf("run: %v, %v; calls %q", res, err, older.calls)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != ttrpc.ErrServerClosed {
		t.Error(err)
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
