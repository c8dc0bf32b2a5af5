package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
)

// A shim that does not answer is detected, its stacks are saved, and the next one replaces it. The
// container lives, and a waiting call is answered.
func TestHungShimIsReplaced(t *testing.T) {
	r := newShortRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	if err := r.c.Health(); err != nil {
		t.Error(err)
	}
	old := r.shimPID()
	r.halt(old)
	ctx, cancel := context.WithTimeout(r.ctx(), 10*time.Millisecond)
	defer cancel()
	if _, err := r.c.Status(ctx, pod, req.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("status: %v", err)
	}
	pending, ask := make(chan error, 1), r.ctx()
	go func() {
		_, err := r.c.Status(ask, pod, req.ID)
		pending <- err
	}()
	r.waitFor("unavailability", func() bool {
		err := r.c.Health()
		return err != nil && strings.Contains(err.Error(), fmt.Sprintf("process %d has not answered", old))
	})
	if err := <-pending; err != nil {
		t.Error(err)
	}
	r.waitGone(old)
	files, _ := filepath.Glob(filepath.Join(r.dir, "node", "stacks-*"))
	var stacks [][]byte // on a busy machine, the next one may be hung for these limits, too
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		if bytes.Contains(b, fmt.Appendf(nil, "\nPid:\t%d\n", old)) {
			stacks = append(stacks, b)
		}
	}
	if len(stacks) != 1 || !bytes.Contains(stacks[0], []byte("State:\tT (stopped)")) {
		t.Errorf("stacks of %d: %s, in %v", old, stacks, files)
	}
	r.alive(req)
	r.waitFor("availability", func() bool { return r.c.Health() == nil })
}

// A shim that is silent for less than the limit is left alone.
func TestSlowShimIsLeftAlone(t *testing.T) {
	r := newShortRig(t)
	r.disconnect()
	r.cfg.SetLimits(client.ShortLimits().Patient())
	r.connect()
	req := r.request("sleep 1000")
	r.run(req)
	shim := r.shimPID()
	r.halt(shim)
	done, ctx := make(chan error, 1), r.ctx()
	go func() {
		_, err := r.c.Status(ctx, pod, req.ID)
		done <- err
	}()
	r.waitFor("unavailability", func() bool { return r.c.Health() != nil })
	r.sendSignal(shim, unix.SIGCONT)
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.waitFor("availability", func() bool { return r.c.Health() == nil })
	if now := r.shimPID(); now != shim {
		t.Errorf("shim %d was replaced by %d", shim, now)
	}
}

// A shim that hangs when its keeper dies is adopted by the next keeper and not started twice: two
// shims would read the same FIFOs.
func TestHungShimAndDeadKeeper(t *testing.T) {
	const lines = 20_000
	r := newShortRig(t)
	req := r.request(count(lines) + "; exit 4")
	r.run(req)
	r.waitLog(req.LogPath, "line number 100\n")
	k, old := r.keeperPID(), r.shimPID()
	r.halt(old)
	r.sendSignal(k, unix.SIGKILL)
	r.waitGone(k)
	if _, err := r.c.Status(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	r.waitGone(old)
	r.waitFor("one shim", func() bool { return len(r.shims()) == 1 }) // a child is one, too, until it executes its program
	if ev := r.exit(req.ID); ev.ExitCode != 4 {
		t.Errorf("event %+v", ev)
	}
	if got, want := r.log(req.LogPath, "stdout"), numbered(lines, "\n"); got != want {
		t.Errorf("log has %d bytes, want %d; first difference: %s", len(got), len(want), firstDifference(got, want))
	}
}

// halt stops a process as a hang would, and returns when all of its threads have stopped.
func (r *rig) halt(pid int) {
	r.Helper()
	r.sendSignal(pid, unix.SIGSTOP)
	r.waitFor("halt", func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, path := range threads {
			b, err := os.ReadFile(path)
			if _, state, _ := strings.Cut(string(b), ") "); err == nil && !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return len(threads) > 0
	})
}

// shims returns the processes that serve the rig's state directory.
func (r *rig) shims() (pids []int) {
	for _, p := range testkit.Processes() {
		if strings.Contains(p.Line()+" ", "serve -state "+filepath.Join(r.dir, "node")+" ") {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// A daemon starts while a shim hangs, and serves when the shim has been replaced.
func TestStartWithHungShim(t *testing.T) {
	r := newShortRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	r.disconnect()
	old := r.shimPID()
	r.halt(old)
	r.connect()
	r.waitFor("unavailability", func() bool { return r.c.Health() != nil })
	// A call that the kill interrupts may fail: its caller repeats it.
	r.waitGone(old)
	r.waitNewShim(old)
	r.alive(req)
}

// A shim that keeps ending is reported once, with its exit status. Meanwhile the runtime is not
// ready.
func TestRestartLoop(t *testing.T) {
	var log lockedBuffer
	r := newShortRigWith(t, func(c *client.Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 8 {
		old := r.killShim()
		r.waitNewShim(old)
		if _, err := r.c.List(r.ctx()); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	r.waitFor("unavailability", func() bool {
		err = r.c.Health()
		return err != nil && strings.Contains(err.Error(), "keeps ending")
	})
	if !strings.Contains(err.Error(), "signal killed") || !strings.Contains(err.Error(), "shim.log") {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "keeps ending"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
	if n := strings.Count(log.String(), "was restarted"); n == 0 || n > client.ShortLimits().Starts() {
		t.Errorf("%d restarts are logged:\n%s", n, log.String())
	}
	if s := r.c.Shims(); len(s) != 1 || s[0].Starts < 7 || s[0].Problem == "" || s[0].LastExit != "signal killed" {
		t.Errorf("shims: %+v", s)
	}
}

// A shim that must not be restarted is not restarted. Calls fail at once and give the reason.
func TestShimThatStays(t *testing.T) {
	r := newShortRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	r.disconnect()
	good := r.cfg.Binary
	r.cfg.Binary = r.script("echo records are of a newer version >&2; exit 78")
	r.connect()
	shim := r.shimPID()
	r.sendSignal(shim, unix.SIGKILL)
	r.waitFor("end for good", func() bool { return r.c.Health() != nil })
	_, err := r.c.List(r.ctx())
	if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "exit status 78: records are of a newer version") {
		t.Error(err)
	}
	r.disconnect()
	r.cfg.Binary = good
	r.connect()
	r.alive(req)
}

// script makes an executable shell script.
func (r *rig) script(text string) string {
	r.Helper()
	path := filepath.Join(r.TempDir(), "shim")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		r.Fatal(err)
	}
	return path
}

// The next shim uses the current configuration, although the keeper knew another one.
func TestShimOfPresentConfiguration(t *testing.T) {
	r := newRig(t)
	r.disconnect()
	moved := filepath.Join(t.TempDir(), "moved-shim")
	if err := os.Link(binary, moved); err != nil {
		t.Fatal(err)
	}
	r.cfg.Binary, r.cfg.Engine = moved, "libcontainer"
	r.connect()
	r.waitNewShim(r.killShim())
	var args []string
	// The arguments are the keeper's until the program is executed, and empty for a moment
	// meanwhile.
	r.waitFor("the shim's own arguments", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.shimPID()))
		args = strings.Split(string(b), "\x00")
		return err == nil && args[0] != "" && args[0] != keeper.ProcessName
	})
	if args[0] != moved || !strings.Contains(strings.Join(args, " "), "-engine libcontainer") {
		t.Errorf("arguments %q", args)
	}
}
