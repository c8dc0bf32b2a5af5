package shimv2

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"google.golang.org/protobuf/types/known/emptypb"
)

// late is a context whose deadline has passed and whose timer has not.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Unix(0, 0), true }

// TestShimSeesTheDeadlineFirst: what a shim says of a call whose deadline it has seen pass is that
// the deadline passed, though ours is about to be seen.
func TestShimSeesTheDeadlineFirst(t *testing.T) {
	killed := errors.New("runc exec: signal: killed")
	if err := callError(late{t.Context()}, killed); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("late: %v", err)
	}
	if err := callError(late{t.Context()}, nil); err != nil {
		t.Errorf("what was done in the last moment: %v", err)
	}
	if err := callError(t.Context(), killed); !errors.Is(err, killed) {
		t.Errorf("no deadline: %v", err)
	}
}

// TestShimThatDoesNotRead: a request that a shim does not read fails in time, and with it those
// that wait for answers. None takes the shim for one that has gone: that would clear its container
// away.
func TestShimThatDoesNotRead(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "shim"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, err := New(Config{StateDir: filepath.Join(dir, "state"), RootDir: filepath.Join(dir, "root")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.patience = 100 * time.Millisecond
	o := &own{Address: l.Addr().String(), Version: taskV3}
	answers := make(chan error, 2)
	go func() { answers <- e.call(t.Context(), o, "Wait", &task.WaitRequest{ID: "x"}, &task.WaitResponse{}) }()
	shim, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	if _, err := shim.Read(make([]byte, 1<<10)); err != nil { // Wait, and no more
		t.Fatal(err)
	}
	go func() {
		answers <- e.call(t.Context(), o, "Kill", &task.KillRequest{ID: strings.Repeat("x", 2<<20)}, &emptypb.Empty{})
	}()
	for range 2 {
		select {
		case err := <-answers:
			if err == nil || errors.Is(err, errGone) {
				t.Errorf("call: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a call still waits for a shim that does not read")
		}
	}
}
