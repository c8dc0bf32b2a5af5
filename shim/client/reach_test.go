package client_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/sock"
)

// Whatever happens to the name of the shim's socket, the next shim can be reached and adopts the
// containers.
func TestSocketOfShimLost(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"removed":   func(*testing.T, string) {},
		"file":      func(t *testing.T, path string) { must(t, os.WriteFile(path, []byte("x"), 0o600)) },
		"directory": func(t *testing.T, path string) { must(t, os.MkdirAll(filepath.Join(path, "x"), 0o700)) },
		"link":      func(t *testing.T, path string) { must(t, os.Symlink(path, path)) },
		"foreign socket": func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
		"foreign socket that no one listens on": func(t *testing.T, path string) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			must(t, l.Close())
		},
	} {
		for _, restart := range []string{"shim", "daemon"} {
			t.Run(name+"/"+restart, func(t *testing.T) {
				r := newShortRig(t)
				req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
				r.run(req)
				r.waitLog(req.LogPath, "ready")
				path := filepath.Join(r.dir, "node", "shim.sock")
				must(t, os.Remove(path))
				damage(t, path)
				switch restart {
				case "shim":
					r.killShim()
				case "daemon":
					r.disconnect()
					r.connect()
				}
				r.alive(req)
				if err := r.c.Health(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Regression: a shim that was started without a listener made its own one in place of the daemon's,
// and was killed then: no one listened on the socket. The daemon of an earlier release, which came
// next, waited for ever.
func TestSocketTakenByAShimThatEnds(t *testing.T) {
	r := newShortRig(t)
	req := r.request("trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done")
	r.run(req)
	r.waitLog(req.LogPath, "ready")
	r.halt(r.shimPID())
	dir := filepath.Join(r.dir, "node")
	before, err := os.Stat(filepath.Join(dir, sock.Shim))
	must(t, err)
	taken := make(chan error, 1)
	go func() { // while the stacks of the shim are awaited
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			now, err := os.Stat(filepath.Join(dir, sock.Shim))
			if err != nil || os.SameFile(before, now) {
				continue
			}
			l, err := sock.Listen(dir, sock.Shim, "unix")
			if err == nil {
				err = l.Close()
			}
			taken <- err
			return
		}
	}()
	if named, err := r.c.Renew(r.ctx()); err != nil || !named {
		t.Errorf("the next shim can be reached: %t, %v", named, err)
	}
	must(t, <-taken)
	r.alive(req)
}

// Without its directory a shim knows no containers, but the containers live, and the shim serves.
func TestDirectoryOfShimRemoved(t *testing.T) {
	r := newShortRig(t)
	req := r.request("sleep 1000")
	pid, err := r.c.Create(r.ctx(), req)
	must(t, err)
	must(t, r.c.StartContainer(r.ctx(), pod, req.ID))
	t.Cleanup(func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		r.waitGone(pid)
		r.removeCgroup(req.ID)
	})
	must(t, os.RemoveAll(filepath.Join(r.dir, "node")))
	r.killShim()
	if pods, err := r.c.List(r.ctx()); err != nil || len(pods) != 0 {
		t.Errorf("list: %v, %v", pods, err)
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("the container: %v", err)
	}
	other := r.request("exit 4")
	r.run(other)
	if ev := r.exit(other.ID); ev.ExitCode != 4 {
		t.Errorf("event %+v", ev)
	}
}

// alive ends a container that prints "ready" and traps TERM, through the shim.
func (r *rig) alive(req client.LaunchRequest) {
	r.Helper()
	// An exec is not repeated when the connection to the old shim ends.
	if _, err := r.c.Status(r.ctx(), pod, req.ID); err != nil {
		r.Fatal(err)
	}
	if out, _, _ := r.exec(req.ID, "echo hi"); out != "hi\n" {
		r.Errorf("exec: %q", out)
	}
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGTERM}); err != nil {
		r.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.ExitCode != 7 {
		r.Errorf("event %+v", ev)
	}
	if out := r.log(req.LogPath, "stdout"); out != "ready\n" {
		r.Errorf("log %q", out)
	}
}

func (r *rig) removeCgroup(id string) {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(filepath.Join(pattern+cgroupParent, id)) // the pattern is valid
		for _, dir := range dirs {
			_ = os.Remove(dir)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
