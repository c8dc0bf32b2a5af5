package client_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
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

// An exec whose caller gives up is gone when the call returns, with what it started: a child that
// holds its streams too, whether or not that has left the session. What has let go of the streams
// stays.
func TestTimedOutExecIsGoneWithItsChildren(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct{ name, script, left string }{
		{"session", "sleep 2001 & (sleep 2002 &) ; echo ready; exec sleep 2004", ""},
		{"stdout", "setsid sh -c 'echo ready; exec sleep 2003' 2>/dev/null & exec sleep 2004", ""},
		{"stderr", "setsid sh -c 'echo ready; exec sleep 2003 >/dev/null' & exec sleep 2004", ""},
		{"stdin", "exec 7<&0; setsid sh -c 'echo ready; exec sleep 2003 <&7 7<&- >/dev/null 2>&1' & exec sleep 2004", ""},
		{"a copy", "setsid sh -c 'echo ready; exec sleep 2003 7>&1 >/dev/null 2>&1' & exec sleep 2004", ""},
		{"opened again", "setsid sh -c 'exec 7>/proc/self/fd/1 >/dev/null 2>&1; echo ready >&7; exec sleep 2003' & exec sleep 2004", ""},
		{"several", "setsid sh -c 'setsid sleep 2002 & setsid sleep 2003 & echo ready; wait' & exec sleep 2004", ""},
		{
			"none", "mkfifo /in; setsid sh -c 'echo >/in; exec sleep 2005' </dev/null >/dev/null 2>&1 & read x </in; echo ready; exec sleep 2004",
			"sleep 2005\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := r.request("sleep 1000")
			r.run(req)
			abandon(t, r, req.ID, tc.script, tc.left)
		})
	}
}

// An exec whose caller gives up is gone with what it started also if the shim dies when it has
// killed the process alone: the next shim is asked again, and goes on. So it is if the exec was
// still being recorded.
func TestTimedOutExecIsGoneThoughTheShimDies(t *testing.T) {
	faults := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", faults)
	defer func(old string) { binary = old }(binary)
	binary = testkit.Bin(t, "faults", testkit.ShimExe)
	for _, hung := range []string{"none", "shim.exec.held", "shim.exec.started"} {
		t.Run(hung, func(t *testing.T) {
			r := newRig(t)
			req := r.request("sleep 1000")
			r.run(req)
			shim := r.shimPID()
			must(t, os.WriteFile(faults, []byte(hung+"=hang,shim.exec.signalled=kill"), 0o600))
			disarmed := make(chan error, 1)
			go func() {
				r.waitDead(shim)
				disarmed <- os.Remove(faults)
			}()
			in := filepath.Join(req.Bundle, "rootfs", "ready")
			must(t, unix.Mkfifo(in, 0o600))
			ready := make(firstWrite, 1)
			go func() {
				if b, err := os.ReadFile(in); err == nil {
					ready.Write(b)
				}
			}()
			abandonWhen(t, r, req.ID, "sleep 2001 & setsid sh -c 'echo >/ready; exec sleep 2003' & exec sleep 2004", "", ready)
			if now := r.shimPID(); now == shim {
				t.Error("the shim did not die")
				r.killShim()
			}
			must(t, <-disarmed)
		})
	}
}

// A server that an exec has handed its streams to was there before, and is not the exec's.
func TestTimedOutExecLeavesServersAlone(t *testing.T) {
	r := newRig(t)
	req := r.request("read pid < /in; exec 7>/proc/$pid/fd/8; echo ready >&7; exec sleep 2005")
	if err := unix.Mkfifo(filepath.Join(req.Bundle, "rootfs", "in"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run(req)
	// Its stdout is another file while echo writes, and no one can look into it while it executes
	// the last command.
	abandon(t, r, req.ID, "exec 8>&1; echo $$ > /in; sleep 2004; :", "sleep 2005\n")
}

// abandon runs a script that says when it is ready, gives up on it then, and sees which of the
// sleeps from 2000 on are left.
func abandon(t *testing.T, r *rig, id, script, want string) {
	abandonWhen(t, r, id, script, want, make(firstWrite, 1))
}

// abandonWhen is abandon; the script may say that it is ready in another way than by its output,
// which comes when the exec has been recorded.
func abandonWhen(t *testing.T, r *rig, id, script, want string, ready firstWrite) {
	ctx, giveUp := context.WithCancel(r.ctx())
	defer giveUp()
	gaveUp := make(chan time.Time, 1)
	go func() {
		gaveUp <- <-ready
		giveUp()
	}()
	input, write := io.Pipe() // open, so that the other side is, too
	defer write.Close()
	_, err := r.c.Exec(ctx, client.ExecRequest{
		PodID: pod, ID: id, Process: process("/bin/sh", "-c", script),
		Streams: client.Streams{Stdin: input, Stdout: ready, Stderr: io.Discard},
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("exec: %v", err)
	}
	took := time.Since(<-gaveUp)
	left := func() string {
		out, _, _ := r.exec(id, "ps | grep -o '[s]leep 200[0-9]' | sort -u")
		return out
	}
	if took >= client.KillTimeout { // it returned without knowing
		r.waitFor("end of the exec", func() bool { return left() == want })
	} else if out := left(); out != want {
		t.Errorf("left: %q, want %q", out, want)
	}
}
