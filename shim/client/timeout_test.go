package client_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coracle-project/coracle/shim/client"
)

// The shim learns a call's deadline and may see it pass before the client does. An
// exec that then looked like any failed one was not killed, in about one of ten
// timeouts.
func TestEveryTimedOutExecIsKilled(t *testing.T) {
	const execs = 80
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	var all sync.WaitGroup
	for range execs {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx(), time.Second)
			defer cancel()
			_, err := r.c.Exec(ctx, client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/sleep", "1000")})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("exec: %v", err)
			}
		})
	}
	all.Wait()
	r.waitFor("end of all execs", func() bool {
		left, err := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
		return err == nil && len(left) == 0
	})
}

// firstWrite tells when something has been written to it for the first time.
type firstWrite chan time.Time

func (f firstWrite) Write(p []byte) (int, error) {
	select {
	case f <- time.Now():
	default:
	}
	return len(p), nil
}

// An exec whose caller gives up is gone when the call returns, with what it started: a
// child that holds its streams too. What left the session stays.
func TestTimedOutExecIsGoneWithItsChildren(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	ctx, giveUp := context.WithCancel(r.ctx())
	defer giveUp()
	ready, gaveUp := make(firstWrite, 1), make(chan time.Time, 1)
	go func() {
		gaveUp <- <-ready
		giveUp()
	}()
	_, err := r.c.Exec(ctx, client.ExecRequest{
		PodID: pod, ID: req.ID,
		Process: process("/bin/sh", "-c", "sleep 2001 & (sleep 2002 &) ; setsid sh -c 'echo ready; exec sleep 2003' & exec sleep 2004"),
		Streams: client.Streams{Stdout: ready},
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("exec: %v", err)
	}
	took := time.Since(<-gaveUp)
	left := func() string {
		out, _, _ := r.exec(req.ID, "ps | grep -o '[s]leep 200[0-9]' | sort -u")
		return out
	}
	if took >= client.KillTimeout { // it returned without knowing
		r.waitFor("end of the exec", func() bool { return left() == "sleep 2003\n" })
	} else if out := left(); out != "sleep 2003\n" {
		t.Errorf("left: %q", out)
	}
}
