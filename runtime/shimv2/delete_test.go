package shimv2

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// reluctant is a shim whose first deletion of its only task, which has ended, fails.
type reluctant struct {
	task.TTRPCTaskService // what is not called
	asked                 int
	deleted, ended        bool
}

func (s *reluctant) Wait(context.Context, *task.WaitRequest) (*task.WaitResponse, error) {
	return &task.WaitResponse{ExitStatus: 3, ExitedAt: timestamppb.New(time.Unix(1000, 0))}, nil
}

func (s *reluctant) Delete(context.Context, *task.DeleteRequest) (*task.DeleteResponse, error) {
	s.asked++
	if s.asked == 1 {
		return nil, errors.New("runc was killed: context deadline exceeded")
	}
	s.deleted = true
	return &task.DeleteResponse{}, nil
}

func (*reluctant) Kill(context.Context, *task.KillRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (*reluctant) Connect(context.Context, *task.ConnectRequest) (*task.ConnectResponse, error) {
	return &task.ConnectResponse{}, nil
}

// Shutdown does nothing while there are tasks, as containerd's.
func (s *reluctant) Shutdown(context.Context, *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.ended = s.deleted
	return &emptypb.Empty{}, nil
}

// TestTaskThatWasNotDeleted: a shim that could not delete a task when that ended is asked again
// when the container is deleted. Its shim did not end, and so the container could never be deleted.
func TestTaskThatWasNotDeleted(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "shim"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	shim := &reluctant{}
	task.RegisterTTRPCTaskService(server, shim)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(context.Background(), l) // ErrServerClosed, by Close
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	rec := &base.Record{ID: "x", Engine: Name, Created: time.Now()}
	if err := e.store.Claim(rec); err != nil {
		t.Fatal(err)
	}
	c := e.container(rec, own{Address: l.Addr().String(), Version: taskV3})
	if x, err := c.finish(t.Context()); err != nil || x.Status != 3 {
		t.Errorf("end: %+v, %v", x, err)
	}
	if err := c.removeAlone(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !shim.ended {
		t.Error("the shim runs on")
	}
}

// TestShimWritesIntoABundleThatIsRemoved: the deletion failed because the directory was not empty
// again.
func TestShimWritesIntoABundleThatIsRemoved(t *testing.T) {
	dir := t.TempDir()
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	bundle := e.bundleDir("x")
	for range 20 {
		if err := os.MkdirAll(bundle, 0o700); err != nil {
			t.Fatal(err)
		}
		began, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for i := 0; ; i++ {
				if os.WriteFile(filepath.Join(bundle, strconv.Itoa(i)), nil, 0o600) != nil {
					return
				}
				if i == 10 {
					close(began)
				}
			}
		}()
		<-began
		if err := e.removeBundle("x"); err != nil {
			t.Error(err)
		}
		<-ended
	}
}
