package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

// The answer to a launch says when the container was ready, and where the time until then went.
func TestLaunchSteps(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	before := time.Now()
	done, err := r.c.Launch(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.c.Status(r.ctx(), pod, req.ID)
	if err != nil || st.State != client.StateRunning || st.Pid != done.Pid {
		t.Errorf("status %+v, %v; launched %+v", st, err, done)
	}
	if done.Created.Before(before) || done.Created.After(time.Now()) {
		t.Errorf("created %v, asked %v", done.Created, before)
	}
	if len(done.EngineSteps) < 3 {
		t.Errorf("steps %+v", done.EngineSteps)
	}
	for _, s := range done.EngineSteps {
		if s.What == "" || s.Took <= 0 || s.Began.Before(before) || s.Began.Add(s.Took).After(done.Created) {
			t.Errorf("step %+v of %v to %v", s, before, done.Created)
		}
	}
}

func TestLife(t *testing.T) {
	r := newRig(t)
	req := r.request("echo out; echo err >&2; printf unfinished; exit 3")
	pid, err := r.c.Create(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	st, err := r.c.Status(r.ctx(), pod, req.ID)
	if err != nil || st.State != client.StateCreated || st.Pid != pid {
		t.Fatalf("status %+v, %v", st, err)
	}
	if err := r.c.StartContainer(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	ev := r.exit(req.ID)
	if ev.ExitCode != 3 || ev.PodID != pod || ev.Pid != pid || ev.OOMKilled || time.Since(ev.ExitedAt) > time.Minute {
		t.Fatalf("event %+v", ev)
	}
	if out := r.log(req.LogPath, "stdout"); out != "out\nunfinished" {
		t.Errorf("stdout %q", out)
	}
	if errs := r.log(req.LogPath, "stderr"); errs != "err\n" {
		t.Errorf("stderr %q", errs)
	}
	st, err = r.c.Status(r.ctx(), pod, req.ID)
	if err != nil || st.State != client.StateStopped || st.ExitCode != 3 || !st.ExitedAt.Equal(ev.ExitedAt) {
		t.Fatalf("status %+v, %v", st, err)
	}
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGTERM}); !errors.Is(err, client.ErrNotRunning) {
		t.Errorf("kill: %v", err)
	}
	for range 2 {
		if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.c.Status(r.ctx(), pod, req.ID); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("status after delete: %v", err)
	}
}

func TestKill(t *testing.T) {
	r := newRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready\n")
	if err := r.c.Delete(r.ctx(), pod, req.ID); !errors.Is(err, client.ErrRunning) {
		t.Errorf("delete of a running container: %v", err)
	}
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGTERM}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 7 {
		t.Errorf("event %+v", ev)
	}
	req = r.request("sleep 1000")
	r.run(req)
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL, All: true}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 137 || ev.OOMKilled {
		t.Errorf("event %+v", ev)
	}
}

func TestDeleteCreated(t *testing.T) {
	r := newRig(t)
	req := r.request("true")
	if _, err := r.c.Create(r.ctx(), req); err != nil {
		t.Fatal(err)
	}
	if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	r.run(req) // the id is free again
	r.exit(req.ID)
}

func TestStats(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	s, err := r.c.Stats(r.ctx(), pod, req.ID)
	if err != nil {
		t.Fatal(err)
	}
	if s.MemoryUsage == 0 || s.CPUUsage == 0 || s.Pids == 0 || s.MemoryWorkingSet > s.MemoryUsage || time.Since(s.Time) > time.Minute {
		t.Errorf("stats %+v", s)
	}
}

func TestExec(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	out, errs, code := r.exec(req.ID, "echo out; echo err >&2; exit 5")
	if out != "out\n" || errs != "err\n" || code != 5 {
		t.Errorf("exec: %q, %q, %d", out, errs, code)
	}

	t.Run("stdin", func(t *testing.T) {
		var out bytes.Buffer
		code, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: req.ID, Process: process("/bin/cat"),
			Streams: client.Streams{Stdin: strings.NewReader(strings.Repeat("x", 300_000)), Stdout: &out},
		})
		if err != nil || code != 0 || out.Len() != 300_000 {
			t.Errorf("code %d, %d bytes, %v", code, out.Len(), err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		p := process("/bin/sh", "-c", "read x; stty size; echo got $x; exit 9")
		p.Terminal = true
		in, type_ := io.Pipe()
		sizes := make(chan client.Size)
		defer type_.Close()
		var out lockedBuffer
		go func() {
			// The second is taken when the first has been set: the line is typed after that.
			for range 2 {
				select {
				case sizes <- client.Size{Width: 132, Height: 43}:
				case <-t.Context().Done():
					return
				}
			}
			io.WriteString(type_, "hello\n")
		}()
		code, err := r.c.Exec(r.ctx(), client.ExecRequest{
			PodID: pod, ID: req.ID, Process: p, Streams: client.Streams{Stdin: in, Stdout: &out, Resize: sizes},
		})
		if err != nil || code != 9 || !strings.Contains(out.String(), "43 132\r\ngot hello") {
			t.Errorf("code %d, %q, %v", code, out.String(), err)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(r.ctx(), 200*time.Millisecond)
		defer cancel()
		_, err := r.c.Exec(ctx, client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/sleep", "1000")})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exec: %v", err)
		}
	})
	t.Run("background child", func(t *testing.T) {
		out, _, code := r.exec(req.ID, "sleep 50 & echo done")
		if out != "done\n" || code != 0 {
			t.Errorf("exec: %q, %d", out, code)
		}
	})
	t.Run("no such program", func(t *testing.T) {
		code, err := r.c.Exec(r.ctx(), client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/no/such")})
		if err == nil {
			t.Errorf("exec: %d", code)
		}
	})
	t.Run("unknown container", func(t *testing.T) {
		if _, err := r.c.Exec(r.ctx(), client.ExecRequest{PodID: pod, ID: "nobody", Process: process("/bin/true")}); !errors.Is(err,
			client.ErrNotFound) {
			t.Errorf("exec: %v", err)
		}
	})
	t.Run("stopped container", func(t *testing.T) {
		req := r.request("true")
		r.run(req)
		r.exit(req.ID)
		if _, err := r.c.Exec(r.ctx(), client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/true")}); !errors.Is(err,
			client.ErrNotRunning) {
			t.Errorf("exec: %v", err)
		}
	})
	// Nothing of the execs is left, once the shim has forgotten them.
	r.waitFor("end of all execs", func() bool {
		left, _ := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
		pipes, _ := os.ReadDir(filepath.Join(r.dir, "exec"))
		return len(left)+len(pipes) == 0
	})
}

func TestBadCreate(t *testing.T) {
	r := newRig(t)
	good := r.request("sleep 1000")
	r.run(good)
	shim := r.shimPID()
	for name, tc := range map[string]struct {
		change func(*client.LaunchRequest)
		want   error
	}{
		"duplicate id":           {func(q *client.LaunchRequest) { q.ID = good.ID }, client.ErrExists},
		"empty id":               {func(q *client.LaunchRequest) { q.ID = "" }, client.ErrInvalid},
		"id with slash":          {func(q *client.LaunchRequest) { q.ID = "../x" }, client.ErrInvalid},
		"long id":                {func(q *client.LaunchRequest) { q.ID = strings.Repeat("x", 77) }, client.ErrInvalid},
		"missing bundle":         {func(q *client.LaunchRequest) { q.Bundle = "/no/such" }, client.ErrInvalid},
		"no log directory":       {func(q *client.LaunchRequest) { q.LogPath = "/no/such/dir/0.log" }, client.ErrInvalid},
		"relative log":           {func(q *client.LaunchRequest) { q.LogPath = "0.log" }, client.ErrInvalid},
		"log is a directory":     {func(q *client.LaunchRequest) { q.LogPath = r.bundles }, client.ErrInvalid},
		"log parent is a file":   {func(q *client.LaunchRequest) { q.LogPath = q.Bundle + "/config.json/0.log" }, client.ErrInvalid},
		"log is a device":        {func(q *client.LaunchRequest) { q.LogPath = "/dev/null" }, client.ErrInvalid},
		"program does not exist": {func(q *client.LaunchRequest) { q.Bundle = r.badBundle() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			req := r.request("true")
			tc.change(&req)
			_, err := r.c.Create(r.ctx(), req)
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("create: %v, want %v", err, tc.want)
			}
		})
	}
	dirs, err := os.ReadDir(filepath.Join(r.dir, "node", "c"))
	if err != nil || len(dirs) != 1 || dirs[0].Name() != good.ID {
		t.Errorf("left in the state directory: %v, %v", dirs, err)
	}
	if _, err := r.c.Status(r.ctx(), pod, good.ID); err != nil {
		t.Error(err)
	}
	if now := r.shimPID(); now != shim {
		t.Errorf("shim %d was replaced by %d\n%s", shim, now, r.shimLog())
	}
}

func TestUnknownID(t *testing.T) {
	r := newRig(t)
	ctx := r.ctx()
	_, statusErr := r.c.Status(ctx, pod, "nobody")
	_, statsErr := r.c.Stats(ctx, pod, "nobody")
	for name, err := range map[string]error{
		"start": r.c.StartContainer(ctx, pod, "nobody"), "status": statusErr, "stats": statsErr,
		"kill":   r.c.Kill(ctx, client.KillRequest{PodID: pod, ID: "nobody", Signal: unix.SIGKILL}),
		"reopen": r.c.ReopenLog(ctx, pod, "nobody"), "attach": r.c.Attach(ctx, pod, "nobody", client.Streams{}),
		"update": r.c.Update(ctx, pod, "nobody", nil),
	} {
		if !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.c.Delete(ctx, pod, "nobody"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := r.c.DeletePod(ctx, "nobody"); err != nil {
		t.Errorf("delete pod: %v", err)
	}
}

// TestBackgroundChildrenOfExecs: commands whose background children keep their streams leave
// nothing behind in the daemon: no goroutine that waits for the end of the streams, no descriptor,
// no file (CVE-2026-53495).
func TestBackgroundChildrenOfExecs(t *testing.T) {
	const calls = 15
	r := newRig(t)
	req := r.request("exec sleep 1000")
	r.run(req)
	r.exec(req.ID, "sleep 1001 & echo done") // what is made once for all
	state := func() (goroutines, files int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	goroutines, files := state()
	for range calls {
		if out, _, code := r.exec(req.ID, "sleep 1001 & echo done"); out != "done\n" || code != 0 {
			t.Fatalf("exec: %q, %d", out, code)
		}
	}
	// The attack was made: the children are there.
	if out, _, _ := r.exec(req.ID, "grep -lz 1001 /proc/[0-9]*/cmdline | wc -l"); strings.TrimSpace(out) < "15" ||
		len(strings.TrimSpace(out)) < 2 {
		t.Errorf("control: %q children run, want more than %d", out, calls)
	}
	r.waitFor("nothing to be left of the calls", func() bool {
		g, f := state()
		return g < goroutines+calls/2 && f < files+calls/2
	})
	if left, err := filepath.Glob(filepath.Join(r.dir, "exec", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}
