package client_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
)

// numbered is what a script that counts to n prints.
func numbered(n int, end string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "line number %d%s", i, end)
	}
	return b.String()
}

// count is a script that prints numbered lines without starting a process.
func count(n int) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line number $i; done", n)
}

// A shim that is killed again and again while a container writes: no byte of the log is
// lost, and none is there twice.
func TestKillShimWhileWriting(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			const lines = 60_000
			r := newRig(t)
			req := r.request(count(lines) + "; exit 4")
			req.Terminal = terminal
			r.run(req)
			pid := 0
			for i := range 9 { // more, and the keeper slows down
				// Each time when a bit more has been written, or at the end.
				r.waitFor("output", func() bool {
					st, err := os.Stat(req.LogPath)
					return err == nil && st.Size() > int64(i)*100_000
				})
				r.waitNewShim(pid)
				pid = r.killShim()
			}
			r.waitNewShim(pid)
			if ev := r.exit(req.ID); ev.ExitCode != 4 {
				t.Errorf("event %+v", ev)
			}
			want := numbered(lines, "\n")
			if terminal {
				want = numbered(lines, "\r\n")
			}
			if got := r.log(req.LogPath, "stdout"); got != want {
				t.Errorf("log has %d bytes, want %d; first difference: %s", len(got), len(want), firstDifference(got, want))
			}
		})
	}
}

func firstDifference(got, want string) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("at %d: %q instead of %q", i, got[max(0, i-40):min(len(got), i+40)], want[max(0, i-40):min(len(want), i+40)])
		}
	}
	return "at the end of the shorter one"
}

// A container that ends, and writes before, while there is neither daemon nor shim.
func TestExitInTheGap(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			r := newRig(t)
			req := r.request("trap 'echo last words; exit 42' TERM; echo ready; while :; do sleep 0.02; done")
			req.Terminal = terminal
			done, err := r.c.Launch(r.ctx(), req)
			if err != nil {
				t.Fatal(err)
			}
			pid := done.Pid
			r.waitLog(req.LogPath, "ready")
			r.disconnect()
			// The keeper is stopped so that no new shim comes before the container has ended.
			keeperPID := r.keeperPID()
			shim := r.shimPID()
			r.sendSignal(keeperPID, unix.SIGSTOP)
			r.sendSignal(shim, unix.SIGKILL)
			r.sendSignal(pid, unix.SIGTERM)
			r.waitDead(pid)
			r.sendSignal(keeperPID, unix.SIGCONT)
			r.connect()
			if ev := r.exit(req.ID); ev.ExitCode != 42 {
				t.Errorf("event %+v", ev)
			}
			if out := strings.ReplaceAll(r.log(req.LogPath, "stdout"), "\r", ""); out != "ready\nlast words\n" {
				t.Errorf("log %q", out)
			}
		})
	}
}

// A daemon that dies while init is on its way to the program: the program runs.
func TestStartOutlivesDaemon(t *testing.T) {
	r := newRig(t)
	req := r.request("exit 7")
	init, err := r.c.Create(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	r.sendSignal(init, unix.SIGSTOP)
	if err := r.c.StartContainer(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	r.disconnect()
	r.connect()
	r.sendSignal(init, unix.SIGCONT)
	if ev := r.exit(req.ID); ev.ExitCode != 7 {
		t.Errorf("event %+v, want the program's own exit code", ev)
	}
}

// A container that ends while neither a shim nor a keeper runs is reported as unknown.
func TestUnseenExit(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	done, err := r.c.Launch(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	pid := done.Pid
	r.disconnect()
	shim := r.shimPID()
	r.sendSignal(r.keeperPID(), unix.SIGKILL)
	r.sendSignal(shim, unix.SIGKILL)
	r.sendSignal(pid, unix.SIGKILL)
	r.waitFor("the container is reaped by the machine's init", func() bool {
		return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
	})
	r.connect()
	if ev := r.exit(req.ID); ev.ExitCode != 255 || !ev.ExitedAt.IsZero() {
		t.Errorf("event %+v", ev)
	}
	if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || st.ExitCode != 255 || !st.ExitedAt.IsZero() {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestKillKeeper(t *testing.T) {
	r := newRig(t)
	req := r.request("read x; echo got $x; exit 6")
	req.Stdin = true
	req.Terminal = true
	r.run(req)
	old := r.keeperPID()
	shim := r.shimPID()
	r.sendSignal(old, unix.SIGKILL)
	r.waitFor("new keeper", func() bool {
		k, err := keeper.Dial(r.dir)
		if err != nil {
			return false
		}
		defer k.Close()
		// The shim runs on, supervised, and its files are held again.
		pid, err := k.Who("shim/node")
		keys, lerr := k.List("c/")
		pass, perr := k.List("pass/")
		return err == nil && pid == shim && lerr == nil && len(keys) == 1 && perr == nil && len(pass) == 1
	})
	// Now the shim: the new keeper must have what is needed.
	r.killShim()
	r.waitNewShim(shim)
	var out lockedBuffer
	if err := r.c.Attach(r.ctx(), pod, req.ID, client.Streams{Stdin: strings.NewReader("hello\n"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 6 || !strings.Contains(out.String(), "got hello") {
		t.Errorf("event %+v, output %q", ev, out.String())
	}
}

func TestKillShimStates(t *testing.T) {
	r := newRig(t)
	created, stopped, running := r.request("echo started"), r.request("exit 9"), r.request("sleep 1000")
	if _, err := r.c.Create(r.ctx(), created); err != nil {
		t.Fatal(err)
	}
	r.run(stopped)
	r.exit(stopped.ID)
	r.run(running)
	before, err := r.c.Status(r.ctx(), pod, running.ID)
	if err != nil {
		t.Fatal(err)
	}
	r.waitNewShim(r.killShim())
	for id, want := range map[string]client.State{
		created.ID: client.StateCreated, stopped.ID: client.StateStopped, running.ID: client.StateRunning,
	} {
		if st, err := r.c.Status(r.ctx(), pod, id); err != nil || st.State != want {
			t.Errorf("%s: %+v, %v", id, st, err)
		}
	}
	if after, _ := r.c.Status(r.ctx(), pod, running.ID); after != before {
		t.Errorf("status was %+v, is %+v", before, after)
	}
	if out, _, _ := r.exec(running.ID, "echo hi"); out != "hi\n" {
		t.Errorf("exec: %q", out)
	}
	if err := r.c.StartContainer(r.ctx(), pod, created.ID); err != nil {
		t.Fatal(err)
	}
	r.exit(created.ID)
	if out := r.log(created.LogPath, "stdout"); out != "started\n" {
		t.Errorf("log %q", out)
	}
}

// An exec outlives the shim: its caller gets its output and its exit code.
func TestKillShimDuringExec(t *testing.T) {
	r := newRig(t)
	req := r.request("mkfifo /tmp/go; sleep 1000")
	r.run(req)
	var out lockedBuffer
	type result struct {
		code int32
		err  error
	}
	done := make(chan result, 1)
	go func() {
		code, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: req.ID, Process: process("/bin/sh", "-c", "echo begin; while ! test -e /tmp/end; do sleep 0.02; done; echo end; exit 8"),
			Streams: client.Streams{Stdout: &out},
		})
		done <- result{code, err}
	}()
	r.waitFor("output", func() bool { return out.String() == "begin\n" })
	r.waitNewShim(r.killShim())
	// An exec is not tried again when it meets the end of the old shim's connection.
	if _, err := r.c.Status(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	r.exec(req.ID, "touch /tmp/end")
	if res := <-done; res.err != nil || res.code != 8 || out.String() != "begin\nend\n" {
		t.Errorf("exec: %+v, %q", res, out.String())
	}
}

// A daemon that comes back learns what has happened.
func TestDaemonRestart(t *testing.T) {
	r := newRig(t)
	ended, running := r.request("exit 5"), r.request("sleep 1000")
	r.run(ended)
	r.run(running)
	r.exit(ended.ID)
	r.disconnect()
	r.connect()
	if ev := r.exit(ended.ID); ev.ExitCode != 5 || ev.PodID != pod {
		t.Errorf("event %+v", ev)
	}
	pods, err := r.c.List(r.ctx())
	if err != nil || len(pods[pod]) != 2 {
		t.Errorf("list: %v, %v", pods, err)
	}
	if err := r.c.Shutdown(r.ctx()); !errors.Is(err, client.ErrRunning) {
		t.Errorf("shutdown with containers: %v", err)
	}
}

func (r *rig) keeperPID() int {
	r.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.shimPID()))
	if err != nil {
		r.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var pid int
		if _, err := fmt.Sscanf(line, "PPid: %d", &pid); err == nil {
			return pid
		}
	}
	r.Fatal("the shim has no parent")
	return 0
}

func (r *rig) sendSignal(pid int, sig unix.Signal) {
	r.Helper()
	if err := unix.Kill(pid, sig); err != nil {
		r.Fatal(err)
	}
}

// waitDead waits until a process is gone or a zombie.
func (r *rig) waitDead(pid int) {
	r.Helper()
	r.waitFor("end of the container", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}
