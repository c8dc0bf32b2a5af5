package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
)

// ownerVar makes the test binary a daemon that runs execs, see order.
const ownerVar = "CORACLE_SHIM_TEST_OWNER"

// order tells such a daemon what to do.
type order struct {
	Config  client.Config
	ID      string
	Scripts []string // each prints a line when it is ready, and ends by itself much later
	TTY     bool
	Timeout time.Duration
}

// obey prints a line for each script that is ready.
func obey(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	o.Config.Log = slog.Default()
	c, err := client.New(o.Config)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if err := c.Start(ctx); err != nil {
		return err
	}
	failed := make(chan error)
	for _, script := range o.Scripts {
		go func() {
			ctx := ctx
			if o.Timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, o.Timeout)
				defer cancel()
			}
			p := process("/bin/sh", "-c", script)
			p.Terminal = o.TTY
			code, err := c.Exec(ctx, client.ExecRequest{PodID: pod, ID: o.ID, Process: p, Streams: client.Streams{Stdout: os.Stdout}})
			failed <- fmt.Errorf("exec ended with %d, %v", code, err)
		}()
	}
	return <-failed
}

// daemonOf starts a daemon and waits until its execs are ready.
func (r *rig) daemonOf(o order) *os.Process {
	r.Helper()
	o.Config = r.cfg
	o.Config.Log = nil
	text, err := json.Marshal(o)
	if err != nil {
		r.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	cmd := exec.CommandContext(r.ctx(), self)
	cmd.Env = append(os.Environ(), ownerVar+"="+string(text))
	cmd.Stderr = r.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		_ = cmd.Process.Kill() // most tests have killed it
		_ = cmd.Wait()
	})
	said := bufio.NewScanner(out)
	for range o.Scripts {
		if !said.Scan() {
			r.Fatalf("the daemon says no more: %v\n%s", said.Err(), r.shimLog())
		}
	}
	return cmd.Process
}

// sleeping returns which of the sleeps from 2000 on run in a container. It asks again if the
// request went to a shim that has just been killed.
func (r *rig) sleeping(id string) string {
	for {
		var out bytes.Buffer
		_, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: id, Streams: client.Streams{Stdout: &out},
			Process: process("/bin/sh", "-c", "ps | grep -o '[s]leep 200[0-9]' | sort -u | tr '\\n' ' '"),
		})
		if err == nil {
			return out.String()
		}
		if !errors.Is(err, client.ErrUnavailable) {
			r.Fatal(err)
		}
	}
}

// noExecs waits until the shim and the keeper have removed all execs.
func (r *rig) noExecs() {
	r.Helper()
	k, err := keeper.Dial(r.dir)
	if err != nil {
		r.Fatal(err)
	}
	defer k.Close()
	r.waitFor("end of all execs", func() bool {
		left, err := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
		held, kerr := k.List("x/")
		return err == nil && kerr == nil && len(left)+len(held) == 0
	})
}

// The execs of a killed daemon end with it, and so do the processes that they started. The execs of
// another daemon keep running, and so do processes that have closed the streams.
func TestExecsEndWithTheirDaemon(t *testing.T) {
	scripts := []string{
		"sleep 2001 & echo ready; exec sleep 2002",
		"setsid sh -c 'echo ready; exec sleep 2003' & exec sleep 2004",
		"mkfifo /in; setsid sh -c 'echo >/in; exec sleep 2005' </dev/null >/dev/null 2>&1 & read x </in; echo ready; exec sleep 2006",
	}
	faults := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", faults)
	arm := func(r *rig, point string) {
		if err := os.WriteFile(faults, []byte(point), 0o600); err != nil {
			r.Fatal(err)
		}
	}
	defer func(old string) { binary = old }(binary)
	binary = testkit.Bin(t, "faults", testkit.ShimExe)
	for _, tc := range []struct {
		name   string
		tty    bool
		killed func(r *rig, id string, daemon *os.Process)
	}{
		{"the shim sees it", false, func(r *rig, id string, daemon *os.Process) { r.sendSignal(daemon.Pid, unix.SIGKILL) }},
		{"with a terminal", true, func(r *rig, id string, daemon *os.Process) { r.sendSignal(daemon.Pid, unix.SIGKILL) }},
		{"the next shim sees it", false, func(r *rig, id string, daemon *os.Process) {
			old := r.killShim()
			r.waitNewShim(old)
			if got, want := r.sleeping(id), "sleep 2001 sleep 2002 sleep 2003 sleep 2004 sleep 2005 sleep 2006 "; got != want {
				r.Errorf("with the next shim there is %q, want %q", got, want)
			}
			r.sendSignal(daemon.Pid, unix.SIGKILL)
		}},
		{"the shim is killed while it ends them", false, func(r *rig, id string, daemon *os.Process) {
			shim := r.shimPID()
			arm(r, "shim.exec.signalled=kill")
			r.sendSignal(daemon.Pid, unix.SIGKILL)
			r.waitDead(shim)
			arm(r, "")
			r.waitNewShim(shim)
		}},
		{"the shim is killed when it has ended one", false, func(r *rig, id string, daemon *os.Process) {
			shim := r.shimPID()
			arm(r, "shim.exec.killed=kill")
			r.sendSignal(daemon.Pid, unix.SIGKILL)
			r.waitDead(shim)
			arm(r, "")
			r.waitNewShim(shim)
		}},
		{"their FIFOs are gone then", false, func(r *rig, id string, daemon *os.Process) {
			shim := r.shimPID()
			r.sendSignal(shim, unix.SIGSTOP)
			r.sendSignal(daemon.Pid, unix.SIGKILL)
			r.waitDead(daemon.Pid)
			must(t, os.RemoveAll(filepath.Join(r.dir, "exec"))) // as the next daemon does when it starts
			must(t, os.Mkdir(filepath.Join(r.dir, "exec"), 0o700))
			r.sendSignal(shim, unix.SIGKILL)
			r.waitNewShim(shim)
		}},
		{"there is no shim then", false, func(r *rig, id string, daemon *os.Process) {
			shim := r.shimPID()
			r.sendSignal(shim, unix.SIGSTOP) // it no longer sees anything
			r.sendSignal(daemon.Pid, unix.SIGKILL)
			r.waitDead(daemon.Pid)
			r.sendSignal(shim, unix.SIGKILL)
			r.waitNewShim(shim)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			req := r.request("sleep 1000")
			r.run(req)
			o, want := order{ID: req.ID, Scripts: scripts}, "sleep 2005 "
			if tc.tty {
				// A process with its own session and without a stream is not found, by design.
				o = order{ID: req.ID, Scripts: []string{"trap '' HUP; sleep 2001 & echo ready; sleep 2002"}, TTY: true}
				want = ""
			}
			daemon := r.daemonOf(o)
			ours, done := make(firstWrite, 1), make(chan error, 1)
			ctx, giveUp := context.WithCancel(r.ctx())
			defer giveUp()
			go func() {
				_, err := r.c.Exec(ctx, client.ExecRequest{
					PodID: pod, ID: req.ID, Process: process("/bin/sh", "-c", "echo; exec sleep 3000"), Streams: client.Streams{Stdout: ours},
				})
				done <- err
			}()
			<-ours
			tc.killed(r, req.ID, daemon)
			r.waitFor("end of the daemon's execs", func() bool { return r.sleeping(req.ID) == want })
			if out, _, _ := r.exec(req.ID, "ps | grep -c '[s]leep 3000'"); out != "1\n" {
				t.Errorf("execs of the other daemon: %q", out)
			}
			giveUp()
			<-done
			r.noExecs()
		})
	}
}

// An exec whose daemon hangs ends soon after its deadline, even if the shim has been replaced
// meanwhile.
func TestExecOfHungDaemonEndsAtItsDeadline(t *testing.T) {
	const timeout, soon = 5 * time.Second, 30 * time.Second // on a busy machine
	for name, meanwhile := range map[string]func(r *rig){
		"same shim": func(*rig) {},
		"next shim": func(r *rig) { r.waitNewShim(r.killShim()) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			req := r.request("sleep 1000")
			r.run(req)
			began := time.Now()
			daemon := r.daemonOf(order{ID: req.ID, Scripts: []string{"sleep 2001 & echo ready; exec sleep 2002"}, Timeout: timeout})
			r.sendSignal(daemon.Pid, unix.SIGSTOP)
			meanwhile(r)
			r.waitFor("end of the exec", func() bool { return r.sleeping(req.ID) == "" })
			if took := time.Since(began); took < timeout || took > timeout+soon {
				t.Errorf("it ended after %v, want %v and a little", took, timeout)
			}
			r.sendSignal(daemon.Pid, unix.SIGKILL)
			r.noExecs()
		})
	}
}
