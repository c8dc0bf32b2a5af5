package client_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

// A requested restart: calls in progress complete normally, and containers keep running.
func TestRestartShim(t *testing.T) {
	r := newRig(t)
	req := r.request(twoLines)
	r.run(req)
	r.waitLog(req.LogPath, "before")
	old := r.shimPID()
	code := make(chan int32, 1)
	go func() {
		n, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: req.ID,
			Process: process("/bin/sh", "-c", "while ! test -e /tmp/go; do sleep 0.02; done; exit 5"),
		})
		if err != nil {
			t.Error(err)
		}
		code <- n
	}()
	// Creations continue meanwhile: each happens once.
	created := make(chan client.LaunchRequest, 20)
	go func() {
		defer close(created)
		for range 20 {
			one := r.request("exit 3")
			_, err := r.c.Create(r.ctx(), one)
			for errors.Is(err, client.ErrUnavailable) { // the creation has not started: otherwise the container would exist
				_, err = r.c.Create(r.ctx(), one)
			}
			if err != nil {
				t.Error("create during a restart:", err)
				continue
			}
			created <- one
		}
	}()
	first := <-created
	if err := r.c.RestartShim(r.ctx(), "node"); err != nil {
		t.Fatal(err)
	}
	if now := r.shimPID(); now == old || now == 0 {
		t.Errorf("shim %d was not replaced", old)
	}
	r.start(first)
	for one := range created {
		r.start(one)
	}
	if _, errs, code := r.exec(req.ID, "touch /tmp/go"); code != 0 {
		t.Errorf("exec: %d, %s", code, errs)
	}
	r.waitLog(req.LogPath, "after")
	if got := r.log(req.LogPath, "stdout"); got != "before\nafter\n" {
		t.Errorf("log %q", got)
	}
	if n := <-code; n != 5 {
		t.Errorf("exec that outlived the shim: %d", n)
	}
	if err := r.c.RestartShim(r.ctx(), "no-such-pod"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("unknown shim: %v", err)
	}
	if err := unix.Kill(old, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the old shim: %v", err)
	}
}

func (r *rig) start(req client.LaunchRequest) {
	r.Helper()
	if err := r.c.StartContainer(r.ctx(), pod, req.ID); err != nil {
		r.Error(err)
		return
	}
	if ev := r.exit(req.ID); ev.ExitCode != 3 {
		r.Errorf("event %+v", ev)
	}
}
