package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
)

// daemonVar makes the test binary a daemon with that state directory.
const daemonVar = "CORACLE_SHIM_TEST_DAEMON"

// daemon is a small daemon: it starts a Client that the keeper respawns, writes its pid
// into a file, and waits.
func daemon(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{
		Binary: os.Getenv(daemonVar + "_BINARY"), StateDir: filepath.Join(dir, "shim"), Log: slog.Default(),
		Daemon: &client.Respawn{Path: self, Args: os.Args, Env: os.Environ()},
	})
	if err != nil {
		return err
	}
	if err := c.Start(context.Background()); err != nil {
		return err
	}
	pidFile := filepath.Join(dir, "pid")
	if err := os.WriteFile(pidFile+".new", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	if err := os.Rename(pidFile+".new", pidFile); err != nil {
		return err
	}
	for range c.Events() {
	}
	return nil
}

// Daemon and shim killed in the same instant: the keeper starts both again.
func TestKillDaemonAndShim(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env:   append(os.Environ(), daemonVar+"="+dir, daemonVar+"_BINARY="+binary),
		Files: []*os.File{nil, log, log},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, dir: filepath.Join(dir, "shim"), bundles: t.TempDir()}
	t.Cleanup(r.killLeft)
	pidOf := func() int {
		b, _ := os.ReadFile(filepath.Join(dir, "pid"))
		pid, _ := strconv.Atoi(string(b))
		return pid
	}
	r.waitFor("start of the daemon", func() bool { return pidOf() == p.Pid })
	r.cfg = client.Config{Binary: binary, StateDir: r.dir, Scope: client.ScopeNode, Log: newLog(t)}
	keeper := r.keeperPID()
	shim := r.shimPID()
	if err := unix.Kill(p.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	r.waitNewShim(shim)
	r.waitFor("new daemon", func() bool { pid := pidOf(); return pid != p.Pid && pid != 0 })
	if r.keeperPID() != keeper {
		t.Error("another keeper")
	}
	// In the end an orderly one takes over, which ends the respawning.
	again := pidOf()
	r.connect()
	if err := unix.Kill(again, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.waitGone(again)
	if got := pidOf(); got != again {
		t.Errorf("daemon %d came after %d", got, again)
	}
	r.end()
	if t.Failed() {
		b, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Log(strings.TrimSpace(fmt.Sprintf("daemon:\n%s", b)))
	}
}
