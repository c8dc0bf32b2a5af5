package client_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

// A container that counts goes on counting where it was, in another one, with streams of
// its own; the one that was saved goes on, too.
func TestCheckpoint(t *testing.T) {
	r := newRig(t)
	req := r.request("i=0; while :; do i=$((i+1)); echo line $i; sleep 0.05; done")
	r.run(req)
	r.waitLog(req.LogPath, "line 3")
	dir := filepath.Join(t.TempDir(), "images")
	err := r.c.Checkpoint(r.ctx(), pod, req.ID, dir)
	cmd := exec.Command("criu", "check")
	cmd.Dir = t.TempDir() // it may log
	if out, check := cmd.CombinedOutput(); check != nil {
		if err == nil || !strings.Contains(err.Error(), "criu") {
			t.Errorf("criu does not work here (%s), and the error is %v", out, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Count(r.log(req.LogPath, "stdout"), "\n")
	again := r.request("echo this is never run")
	again.Checkpoint = dir
	r.run(again)
	r.waitLog(again.LogPath, "line ")
	first, _, _ := strings.Cut(r.log(again.LogPath, "stdout"), "\n")
	var n int
	if _, err := fmt.Sscanf(first, "line %d", &n); err != nil || n < 3 || n > said+2 {
		t.Errorf("the restored container begins with %q; the saved one had said %d lines", first, said)
	}
	r.waitLog(req.LogPath, "line 20")
}

// A shim that takes over a frozen container knows that it is: SIGKILL thaws it, without which a
// process does not die under cgroup v1.
func TestKillOfAFrozenContainerAfterTheShim(t *testing.T) {
	r := newRig(t)
	req := r.request("echo ready; while :; do sleep 0.05; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	if err := r.c.Pause(r.ctx(), pod, req.ID); err != nil {
		t.Fatal(err)
	}
	r.waitNewShim(r.killShim())
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 137 {
		t.Errorf("event %+v", ev)
	}
}
