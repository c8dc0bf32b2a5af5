package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// With ScopePod each pod has a shim, which ends with the pod.
func TestScopePod(t *testing.T) {
	r := newRig(t)
	if err := r.c.Shutdown(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.reader.Wait()
	r.cfg.Scope = client.ScopePod
	r.connect()
	pids := make(map[int]bool)
	for _, p := range []string{"a", "b"} {
		req := r.request("echo hi; exit 2")
		req.PodID = p
		r.run(req)
		if ev := r.exit(req.ID); ev.ExitCode != 2 || ev.PodID != p {
			t.Errorf("event %+v", ev)
		}
		k, err := keeper.Dial(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := k.Who("shim/" + p)
		k.Close()
		if err != nil || pids[pid] {
			t.Errorf("shim of pod %s: %d, %v", p, pid, err)
		}
		pids[pid] = true
		if err := r.c.DeletePod(r.ctx(), p); !errors.Is(err, client.ErrRunning) {
			t.Errorf("delete of a pod with a container: %v", err)
		}
		if p == "b" {
			break // is left for the next daemon
		}
		if err := r.c.Delete(r.ctx(), p, req.ID); err != nil {
			t.Fatal(err)
		}
		shim, err := pidfd.Open(pid)
		if err != nil {
			t.Fatal(err)
		}
		defer shim.Close()
		for range 2 {
			if err := r.c.DeletePod(r.ctx(), p); err != nil {
				t.Fatal(err)
			}
		}
		// Its pid may last a little longer: until the keeper has reaped it.
		end := []unix.PollFd{{Fd: int32(shim.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(end, 0); err != nil || n != 1 {
			t.Errorf("shim %d of a deleted pod runs: %d, %v", pid, n, err)
		}
		if _, err := os.Stat(filepath.Join(r.dir, "pods", p)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("directory of a deleted pod: %v", err)
		}
	}
	r.disconnect()
	r.connect()
	pods, err := r.c.List(r.ctx())
	if err != nil || len(pods) != 1 || len(pods["b"]) != 1 {
		t.Errorf("list: %v, %v", pods, err)
	}
}

func TestBadConfig(t *testing.T) {
	good := client.Config{Binary: "/bin/x", StateDir: "/run/x", Log: newLog(t)}
	for name, spoil := range map[string]func(*client.Config){
		"relative binary": func(c *client.Config) { c.Binary = "x" },
		"relative state":  func(c *client.Config) { c.StateDir = "x" },
		"unknown scope":   func(c *client.Config) { c.Scope = "galaxy" },
		"no logger":       func(c *client.Config) { c.Log = nil },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := client.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// If one pod's shim does not answer, the containers of the others are still known.
func TestListWithoutOneShim(t *testing.T) {
	r := newRig(t)
	if err := r.c.Shutdown(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.reader.Wait()
	r.cfg.Scope = client.ScopePod
	r.connect()
	for _, p := range []string{"a", "b"} {
		req := r.request("while :; do sleep 1; done")
		req.PodID = p
		r.run(req)
	}
	k, err := keeper.Dial(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	pid, err := k.Who("shim/a")
	if err != nil {
		t.Fatal(err)
	}
	r.halt(pid)
	ctx, cancel := context.WithTimeout(r.ctx(), 5*time.Second) // in which the others answer, on a busy machine, too
	defer cancel()
	pods, err := r.c.List(ctx)
	var silent *client.UnansweredError
	if !errors.As(err, &silent) || len(silent.Pods) != 1 || silent.Pods["a"] == nil || !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("error: %v", err)
	}
	if len(pods) != 1 || len(pods["b"]) != 1 {
		t.Errorf("list: %v", pods)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if pods, err = r.c.List(r.ctx()); err != nil || len(pods) != 2 {
		t.Errorf("list: %v, %v", pods, err)
	}
}
