package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestAttackDeviceInPlaceOfPasswd: the root of a container makes a device node in place of
// /etc/passwd, which an exec without HOME looks at. The host's root may open any device.
func TestAttackDeviceInPlaceOfPasswd(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	passwd := filepath.Join(bundle, "rootfs", "etc", "passwd")
	if err := os.MkdirAll(filepath.Dir(passwd), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(passwd, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
	opened := opens(t, passwd)
	f, err := os.OpenFile(passwd, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if !opened() {
		t.Fatal("a plain open is not seen: this test proves nothing")
	}

	id := fmt.Sprintf("devices-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x </dev/zero")
	spec.Process.Env = nil
	c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	init := c.Pid()
	defer func() {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
		_, _ = runtimetest.Exit(init)
	}()
	if opened() {
		t.Error("the creation opened the device")
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := *spec.Process
	p.Args = []string{"/bin/sh", "-c", `test "$HOME" = /`}
	pid, err := c.Exec(t.Context(), &p, runtime.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := runtimetest.Exit(pid); err != nil || status != 0 {
		t.Errorf("the process ended with %d, %v", status, err)
	}
	if opened() {
		t.Error("the exec opened the device")
	}
}

// opens says whether a file has been opened for reading or writing since the last call.
func opens(t *testing.T, path string) func() bool {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4<<10))
		return err == nil && n > 0
	}
}
