package client_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

// Neither init nor an exec gets a descriptor of the shim's.
func TestNoDescriptorLeaks(t *testing.T) {
	r := newRig(t)
	const list = `for f in /proc/self/fd/*; do echo -n "${f##*/} "; done`
	req := r.request(list + "; echo; sleep 1000")
	req.Stdin = true
	r.run(req)
	r.waitLog(req.LogPath, "\n")
	// 3 is the shell's own, reading the directory.
	for who, got := range map[string]string{
		"init": r.log(req.LogPath, "stdout"),
		"exec": func() string { out, _, _ := r.exec(req.ID, list); return out }(),
	} {
		if fds := strings.Fields(got); len(fds) > 4 || fds[0] != "0" {
			t.Errorf("%s has descriptors %v", who, fds)
		}
	}
}

// Exec ends with its process, though a child goes on writing forever.
func TestExecLeavesWriterBehind(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	var out bytes.Buffer
	code, err := r.c.Exec(r.ctx(), client.ExecRequest{
		PodID: pod, ID: req.ID, Process: process("/bin/sh", "-c", "while :; do echo again; done & exit 3"),
		Streams: client.Streams{Stdout: &out},
	})
	if err != nil || code != 3 {
		t.Errorf("code %d, %v", code, err)
	}
}

// A container may leave its terminal and come back to it.
func TestTerminalOpenedAgain(t *testing.T) {
	r := newRig(t)
	req := r.request(
		"echo one; exec </dev/null >/dev/null 2>&1; sleep 0.2; echo two >/dev/console; sleep 0.2; echo three >/dev/console; sleep 0.2",
	)
	req.Terminal = true
	r.run(req)
	r.exit(req.ID)
	if got := strings.ReplaceAll(r.log(req.LogPath, "stdout"), "\r", ""); got != "one\ntwo\nthree\n" {
		t.Errorf("log %q", got)
	}
}

// Daemon, shim and keeper killed in the same instant: what runs is adopted by those that
// a supervisor starts then, without its terminal if it had one.
func TestKillAll(t *testing.T) {
	r := newRig(t)
	plain, tty := r.request("echo one; read x; while [ ! -e /go ]; do sleep 0.02; done; echo two; exit 7"), r.request("echo there; sleep 1000")
	plain.Stdin, tty.Terminal = true, true
	r.run(plain)
	r.run(tty)
	r.waitLog(plain.LogPath, "one")
	r.waitLog(tty.LogPath, "there")
	keeper, shim := r.keeperPID(), r.shimPID()
	r.disconnect() // as good as killed: nothing is told to the others
	r.sendSignal(keeper, unix.SIGKILL)
	r.sendSignal(shim, unix.SIGKILL)
	r.waitGone(keeper)
	r.waitGone(shim)
	r.connect()
	again := r.shimPID()
	// Whether it ends by itself or with the container, which it lets end, no one can tell.
	if _, _, code := r.exec(plain.ID, "echo >/go"); code != 0 && code != 137 {
		t.Errorf("exec: %d", code)
	}
	if ev := r.exit(plain.ID); ev.Pid == 0 {
		t.Errorf("event %+v", ev)
	}
	if got := r.log(plain.LogPath, "stdout"); got != "one\ntwo\n" {
		t.Errorf("log %q", got)
	}
	// Its terminal was hung up: either it has died of that, or it can be killed.
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: tty.ID, Signal: unix.SIGKILL}); err != nil &&
		!errors.Is(err, client.ErrNotRunning) {
		t.Error(err)
	}
	r.exit(tty.ID)
	if r.shimPID() != again {
		t.Error("the shim did not stay")
	}
}

func TestKillWithNoSignal(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: 4711}); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("kill: %v", err)
	}
}
