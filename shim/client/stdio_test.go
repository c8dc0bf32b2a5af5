package client_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/shim/client"
)

func TestAttachStdin(t *testing.T) {
	r := newRig(t)
	req := r.request("cat; echo end")
	req.Stdin, req.StdinOnce = true, true
	r.run(req)
	var out lockedBuffer
	if err := r.c.Attach(r.ctx(), pod, req.ID, client.Streams{Stdin: strings.NewReader("typed\n"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 0 || out.String() != "typed\nend\n" {
		t.Errorf("event %+v, output %q", ev, out.String())
	}
	if log := r.log(req.LogPath, "stdout"); log != "typed\nend\n" {
		t.Errorf("log %q", log)
	}
}

func TestAttachTwiceAndDetach(t *testing.T) {
	r := newRig(t)
	req := r.request("while read x; do echo out $x; echo err $x >&2; done")
	req.Stdin = true
	r.run(req)
	in, typist := io.Pipe()
	ctx, detach := context.WithCancel(r.ctx())
	var outs, errs [2]lockedBuffer
	done := make(chan error, 2)
	for i := range 2 {
		s := client.Streams{Stdout: &outs[i], Stderr: &errs[i]}
		if i == 0 {
			s.Stdin = in
		}
		go func() { done <- r.c.Attach(ctx, pod, req.ID, s) }()
	}
	r.waitFor("output at both", func() bool { // the second may attach late
		io.WriteString(typist, "1\n")
		return strings.Contains(outs[0].String(), "out 1") && strings.Contains(outs[1].String(), "out 1") &&
			strings.Contains(errs[1].String(), "err 1")
	})
	detach()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("attach: %v", err)
		}
	}
	typist.Close()
	if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || st.State != client.StateRunning {
		t.Errorf("status %+v, %v", st, err)
	}
}

// A reader that does not read must not hold up the log.
func TestAttachLaggard(t *testing.T) {
	const lines = 200_000
	r := newRig(t)
	req := r.request("read x; " + count(lines))
	req.Stdin = true
	r.run(req)
	stuck, release := io.Pipe()
	defer stuck.Close()
	done := make(chan error, 1)
	go func() {
		done <- r.c.Attach(r.ctx(), pod, req.ID, client.Streams{Stdin: strings.NewReader("go\n"), Stdout: release})
	}()
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
	if got, want := r.log(req.LogPath, "stdout"), numbered(lines, "\n"); got != want {
		t.Errorf("log: %s", firstDifference(got, want))
	}
	stuck.Close()
	if err := <-done; err != nil {
		t.Errorf("attach: %v", err)
	}
}

func TestResize(t *testing.T) {
	r := newRig(t)
	req := r.request("while ! stty size | grep -q '43 132'; do sleep 0.02; done; echo right")
	req.Terminal, req.Stdin = true, true
	r.run(req)
	sizes := make(chan client.Size, 1)
	sizes <- client.Size{Width: 132, Height: 43}
	var out lockedBuffer
	if err := r.c.Attach(r.ctx(), pod, req.ID, client.Streams{Stdout: &out, Resize: sizes}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 0 || !strings.Contains(r.log(req.LogPath, "stdout"), "right") {
		t.Errorf("event %+v", ev)
	}
}

func TestReopenLog(t *testing.T) {
	r := newRig(t)
	req := r.request("while read x; do echo $x; done")
	req.Stdin = true
	r.run(req)
	in, typist := io.Pipe()
	ctx, detach := context.WithCancel(r.ctx())
	done := make(chan error, 1)
	go func() { done <- r.c.Attach(ctx, pod, req.ID, client.Streams{Stdin: in}) }()
	io.WriteString(typist, "one\n")
	r.waitLog(req.LogPath, "one\n")
	if err := os.Rename(req.LogPath, req.LogPath+".1"); err != nil {
		t.Fatal(err)
	}
	io.WriteString(typist, "two\n")
	r.waitLog(req.LogPath+".1", "two\n")
	r.waitNewShim(r.killShim()) // goes on in the renamed file
	r.waitFor("line in the renamed file", func() bool {
		io.WriteString(typist, "three\n")
		return strings.Contains(r.log(req.LogPath+".1", "stdout"), "three\n")
	})
	if err := r.c.ReopenLog(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	io.WriteString(typist, "four\n")
	r.waitLog(req.LogPath, "four\n")
	detach()
	<-done
	typist.Close()
}

func TestNoLog(t *testing.T) {
	r := newRig(t)
	req := r.request(count(20_000))
	req.LogPath = ""
	r.run(req)
	if ev := r.exit(req.ID); ev.ExitCode != 0 {
		t.Errorf("event %+v", ev)
	}
}
