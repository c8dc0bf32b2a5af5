package streams

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

func TestExec(t *testing.T) {
	b := newBench(t, "")
	ctx := t.Context()
	created := b.node.Container(b.node.Pod(), podtest.In(state.ContainerCreated)).ID
	if err := b.CheckExec(created); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("check before start: %v", err)
	}
	if _, err := b.ExecSync(ctx, ExecRequest{Container: created, Command: []string{"x"}}, 0); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("exec before start: %v", err)
	}
	podtest.OK(t, b.CheckExec(b.id))
	r, err := b.ExecSync(ctx, ExecRequest{Container: b.id[:8], Command: []string{"env"}}, 0)
	podtest.OK(t, err)
	if r.ExitCode != 3 || !strings.Contains(string(r.Stdout), "A=image") || strings.Contains(string(r.Stdout), "TERM=") {
		t.Errorf("got code %d, output %q", r.ExitCode, r.Stdout)
	}
	r.Free()
	var out bytes.Buffer
	code, err := b.Exec(ctx, ExecRequest{Container: b.id, Command: []string{"env"}, TTY: true, Streams: client.Streams{Stdout: &out}})
	if err != nil || code != 3 || !strings.Contains(out.String(), "TERM=xterm") {
		t.Errorf("got code %d, %v, output %q", code, err, out.String())
	}
	r, err = b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"flood"}}, 0)
	if err != nil || len(r.Stdout) != MaxExecSyncOutput {
		t.Errorf("output of %d bytes, %v", len(r.Stdout), err)
	}
	r.Free()
	_, err = b.ExecSync(ctx, ExecRequest{Container: b.id, Command: []string{"sleep"}}, time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timeout: %v", err)
	}
	if _, err := b.Exec(ctx, ExecRequest{Container: b.id}); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("no command: %v", err)
	}
	want := []string{"env", "env on a terminal", "flood", "sleep"}
	for i := range want {
		want[i] = "exec in " + b.podID + "/" + b.id + ": " + want[i]
	}
	if got := b.shim.asked(); !slices.Equal(got, want) {
		t.Errorf("the shim was asked to %q, want %q", got, want)
	}
}

func TestAttachAndReopenLog(t *testing.T) {
	b := newBench(t, "")
	ctx := t.Context()
	created := b.node.Container(b.node.Pod(), podtest.In(state.ContainerCreated)).ID
	for name, err := range map[string]error{
		"attach": b.Attach(ctx, created, false, client.Streams{}), "check": b.CheckAttach(created), "reopen": b.ReopenLog(ctx, created),
	} {
		if !errors.Is(err, errdefs.ErrPrecondition) {
			t.Errorf("%s before start: %v", name, err)
		}
	}
	podtest.OK(t, b.CheckAttach(b.id))
	podtest.OK(t, b.Attach(ctx, b.id, false, client.Streams{}))
	podtest.OK(t, b.ReopenLog(ctx, b.id))
	if err := b.Attach(ctx, b.id, true, client.Streams{}); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("attach with a terminal that is not there: %v", err)
	}
	want := []string{"attach to " + b.podID + "/" + b.id, "reopen log of " + b.podID + "/" + b.id}
	if got := b.shim.asked(); !slices.Equal(got, want) {
		t.Errorf("the shim was asked to %q, want %q", got, want)
	}
}

// TestUnknownIDs of containers and pods are told from malformed ones.
func TestUnknownIDs(t *testing.T) {
	b := newBench(t, "")
	ctx := t.Context()
	for name, call := range map[string]func(id string) error{
		"ExecSync":    func(id string) error { _, err := b.ExecSync(ctx, ExecRequest{Container: id}, 0); return err },
		"Exec":        func(id string) error { _, err := b.Exec(ctx, ExecRequest{Container: id}); return err },
		"Attach":      func(id string) error { return b.Attach(ctx, id, false, client.Streams{}) },
		"PortForward": func(id string) error { return b.PortForward(ctx, id, 80, nopStream{}) },
		"ReopenLog":   func(id string) error { return b.ReopenLog(ctx, id) },
		"CheckExec":   b.CheckExec, "CheckAttach": b.CheckAttach, "CheckPod": b.CheckPod,
	} {
		if err := call("feedbeef"); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s of an unknown id: %v", name, err)
		}
		if err := call(""); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s of an empty id: %v", name, err)
		}
	}
}

type nopStream struct{}

func (nopStream) Read([]byte) (int, error)    { return 0, net.ErrClosed }
func (nopStream) Write(p []byte) (int, error) { return len(p), nil }
func (nopStream) Close() error                { return nil }
