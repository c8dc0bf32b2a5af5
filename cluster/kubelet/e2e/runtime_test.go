package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// runtimeVar chooses the runtime that the tests run on: coracled, which is the default, or
// containerd.
const runtimeVar = "KUBELET_E2E_RUNTIME"

// daemon is a runtime with state of its own.
type daemon struct {
	t      *testing.T
	name   string // as the runtime calls itself
	cmd    *exec.Cmd
	socket string
	log    string
	// command starts it, by name and arguments; env is added to the tests' own.
	command, env []string
	// purge removes what it has, after the test's pods have gone; it still runs then.
	purge func() error
}

// startRuntime starts the chosen runtime, which pulls over plain HTTP from registry, and purges it
// at the end.
func startRuntime(t *testing.T, registry string) *daemon {
	t.Helper()
	dir := scratch(t)
	d := &daemon{t: t, socket: filepath.Join(dir, "cri.sock"), log: filepath.Join(dir, "log")}
	switch name := os.Getenv(runtimeVar); name {
	case "", "coracled":
		d.coracled(dir, registry)
	case "containerd":
		d.containerd(dir, registry)
	default:
		t.Fatalf("%s=%s: there are coracled and containerd", runtimeVar, name)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(d.log)
			t.Logf("the log of %s ends:\n%s", d.name, log[max(0, len(log)-8000):])
		}
		if err := d.purge(); err != nil {
			t.Errorf("purge: %v", err)
		}
		d.stop(syscall.SIGTERM)
	})
	d.start()
	return d
}

// coracled has d be a coracled below dir.
func (d *daemon) coracled(dir, registry string) {
	d.t.Helper()
	d.name = "coracle"
	exe, config := binary(d.t, "coracled"), filepath.Join(dir, "config.toml")
	args := []string{
		"--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"), "--address", "unix://" + d.socket, "--config", config,
	}
	write(d.t, config,
		fmt.Sprintf("[shim]\nsupervise = false\n[network]\ncni_conf_dir = %q\n[cgroup]\nroot = %q\n[image.registry.%q]\nplain_http = true\n",
			filepath.Join(dir, "cni"), "/"+filepath.Base(dir), registry))
	d.command = append([]string{exe}, args...)
	d.purge = func() error {
		d.stop(syscall.SIGTERM)
		if out, err := exec.Command(exe, append([]string{"purge"}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}
}

func (d *daemon) start() {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(d.command[0], d.command[1:]...)
	d.cmd.Env = append(os.Environ(), d.env...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) stop(s syscall.Signal) {
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Wait()
}

// write writes a file of a runtime's configuration.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// binary returns an executable, or a directory of them, or says how it is made.
func binary(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = "../../../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: build it with `make build` (containerd: `make bench-peers`) in the repository's root, or name its directory in CORACLE_BIN",
			err)
	}
	return path
}

// scratch is a directory whose name is short enough for sockets in it.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ck-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// refused is an address that no one listens on.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
