package shimv2

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coracle-project/coracle/internal/testkit/nofiles"
	"github.com/coracle-project/coracle/runtime"
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

// served makes a container whose shim is the given one.
func served(t *testing.T, shim task.TTRPCTaskService) *container {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "shim"))
	if err != nil {
		t.Fatal(err)
	}
	return servedAt(t, dir, l, shim)
}

// servedAt is served with the state directory and the shim's socket given.
func servedAt(t *testing.T, dir string, l net.Listener, shim task.TTRPCTaskService) *container {
	t.Helper()
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	task.RegisterTTRPCTaskService(server, shim)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(context.Background(), l) // ErrServerClosed, by Close
	}()
	t.Cleanup(func() {
		server.Close()
		<-ended
	})
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	rec := &base.Record{ID: "x", Engine: Name, Created: time.Now()}
	if err := e.store.Claim(rec); err != nil {
		t.Fatal(err)
	}
	return e.container(rec, own{Address: l.Addr().String(), Version: taskV3})
}

// TestTaskThatWasNotDeleted: a shim that could not delete a task when that ended is asked again
// when the container is deleted. Its shim did not end, and so the container could never be deleted.
func TestTaskThatWasNotDeleted(t *testing.T) {
	shim := &reluctant{}
	c := served(t, shim)
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

// Regression: containerd's shim looks for its socket from the bundle of the first container. If
// that was deleted before another one of the shim, whose deletion had failed, the socket was left.
func TestSocketOfAShimThatHasEnded(t *testing.T) {
	for name, own := range map[string]bool{"in the engine's directory": true, "elsewhere": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sockets := filepath.Join(dir, "elsewhere")
			if own {
				sockets = filepath.Join(dir, "root", "s")
			}
			if err := os.MkdirAll(sockets, 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(sockets, "shim"), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			if err := servedAt(t, dir, l, &reluctant{asked: 1}).removeAlone(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err = os.Stat(l.Addr().String())
			if own && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
			if !own && err != nil {
				t.Errorf("a file that is not the engine's: %v", err)
			}
		})
	}
}

// forgetful is a shim that knows only once how its task ended. Asked again, it frees descriptors
// first.
type forgetful struct {
	reluctant
	waits int
	free  func()
}

func (s *forgetful) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	if s.waits++; s.waits == 1 {
		return s.reluctant.Wait(ctx, r)
	}
	s.free()
	return nil, status.Error(codes.NotFound, "no such task")
}

// Regression: if the file that says how init ended could not be opened for a moment, the shim was
// asked, which had forgotten it. The file was replaced by one that says that no one knows.
func TestEndIsKeptWhileItCannotBeRead(t *testing.T) {
	shim := &forgetful{}
	c := served(t, shim)
	if x, err := c.finish(t.Context()); err != nil || x.Status != 3 {
		t.Fatalf("end: %+v, %v", x, err)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	shim.free = func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	nofiles.Run(t, func() {
		if x, err := c.finish(t.Context()); !errors.Is(err, unix.EMFILE) {
			t.Errorf("while it cannot be read: %+v, %v", x, err)
		}
	})
	if x, err := c.finish(t.Context()); err != nil || x.Status != 3 || shim.waits != 1 {
		t.Errorf("end, read again: %+v, %v; the shim was asked %d times", x, err, shim.waits)
	}
}

// Regression: a process counted as gone, was killed and was never waited for again if this program
// had no descriptor when it asked for the process's end.
func TestWaitForAProcessWithoutDescriptors(t *testing.T) {
	shim := &reluctant{}
	c := served(t, shim)
	pid, err := c.noteExec(77, "exec")
	if err != nil {
		t.Fatal(err)
	}
	nofiles.Run(t, func() {
		if x, err := c.Wait(t.Context(), pid); !errors.Is(err, unix.EMFILE) || errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("wait: %+v, %v", x, err)
		}
		if err := c.SignalProcess(t.Context(), pid, unix.SIGTERM); !errors.Is(err, unix.EMFILE) || errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("signal: %v", err)
		}
	})
	shim.asked = 1 // its Delete succeeds
	if x, err := c.Wait(t.Context(), pid); err != nil || x.Status != 3 {
		t.Errorf("asked again: %+v, %v", x, err)
	}
	if _, err := c.Wait(t.Context(), pid); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("of a process whose end was told: %v", err)
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

// Regression: while the record of another container could not be read, its shim counted as one that
// no other container has, and was told to end.
func TestShimIsKeptWhileARecordCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	o := own{Address: "/shim", Version: taskV3}
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"x", "other"} {
		if err := e.store.Claim(&base.Record{Version: 1, ID: id, Engine: Name, Created: time.Now(), Own: raw}); err != nil {
			t.Fatal(err)
		}
	}
	if shared, err := e.shared(&o, "x"); !shared || err != nil {
		t.Errorf("a shim of two containers is shared: %t, %v", shared, err)
	}
	// Another program has a lease of the file: open(2) fails with EAGAIN.
	f, err := os.OpenFile(filepath.Join(e.store.ContainerDir("other"), "record.json"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if shared, err := e.shared(&o, "x"); shared || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("while a record cannot be read: %t, %v", shared, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if shared, err := e.shared(&o, "x"); !shared || err != nil {
		t.Errorf("afterwards: %t, %v", shared, err)
	}
	if shared, err := e.shared(&own{Address: "/another"}, "x"); shared || err != nil {
		t.Errorf("another shim is shared: %t, %v", shared, err)
	}
}
