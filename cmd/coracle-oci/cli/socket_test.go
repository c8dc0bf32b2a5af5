package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/runtime"
)

// receivePidfd listens on a socket and returns the pid of the process that a received pidfd refers
// to.
func receivePidfd(t *testing.T, path string) func() string {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_ = l.SetDeadline(time.Now().Add(30 * time.Second))
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sock, err := conn.File()
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		// File gives a blocking one; the read must not outlive the test.
		if err := unix.SetNonblock(int(sock.Fd()), true); err != nil {
			t.Fatal(err)
		}
		own := os.NewFile(dup(t, sock), "socket")
		defer own.Close()
		pidfd, err := runtime.ReceiveFile(ctx, own)
		if err != nil {
			t.Fatal(err)
		}
		defer pidfd.Close()
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", pidfd.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(info) {
			if pid, ok := bytes.CutPrefix(line, []byte("Pid:")); ok {
				return string(bytes.TrimSpace(pid))
			}
		}
		t.Fatalf("what came is no pidfd: %s", info)
		return ""
	}
}

func dup(t *testing.T, f *os.File) uintptr {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	return uintptr(fd)
}

func TestPidfdSocket(t *testing.T) {
	id, root, dir := box(t, false, "/bin/sleep", "1000")
	tmp := t.TempDir()
	sock, pidFile := filepath.Join(tmp, "sock"), filepath.Join(tmp, "pid")
	got := receivePidfd(t, sock)
	check := func(args ...string) {
		t.Helper()
		cmd := program(append(root, args...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		pid := got()
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		want, err := os.ReadFile(pidFile)
		if err != nil || string(want) != pid {
			t.Errorf("%s: pidfd of %s, pid file says %s (%v)", args[0], pid, want, err)
		}
	}
	check("run", "--detach", "--bundle", dir, "--pidfd-socket", sock, "--pid-file", pidFile, id)
	defer func() {
		if out, err := program(append(root, "delete", "--force", id)...).CombinedOutput(); err != nil {
			t.Errorf("delete: %v: %s", err, out)
		}
	}()
	check("exec", "--detach", "--pidfd-socket", sock, "--pid-file", pidFile, id, "/bin/sleep", "1000")

	out, err := program(append(root, "exec", "--pidfd-socket", sock+"-not", id, "/bin/true")...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "connect to --pidfd-socket") {
		t.Errorf("a socket that is not there: %v, %s", err, out)
	}
}

// A service manager's socket gets READY=1 through the container's own, and the pid that
// is to be watched.
func TestNotifySocket(t *testing.T) {
	id, root, dir := box(t, false, "/bin/sleep", "1000")
	host := filepath.Join(t.TempDir(), "host.sock")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: host, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_ = l.SetReadDeadline(time.Now().Add(30 * time.Second))
	notified := func(args ...string) error {
		cmd := program(append(root, args...)...)
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+host)
		return cmd.Run()
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	if err := notified("create", "--bundle", dir, "--pid-file", pidFile, id); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if out, err := program(append(root, "delete", "--force", id)...).CombinedOutput(); err != nil {
			t.Errorf("delete: %v: %s", err, out)
		}
		left, _ := os.ReadDir(root[1])
		if len(left) > 0 {
			t.Errorf("delete left %v", left)
		}
	}()
	// A second container cannot have the id, and must not take the first one's socket along.
	if err := notified("create", "--bundle", dir, id); err == nil {
		t.Fatal("a second container with the same id")
	}
	if _, err := os.Stat(filepath.Join(root[1], cli.NotifyPrefix+id)); err != nil {
		t.Errorf("the first container's directory: %v", err)
	}
	started := make(chan error, 1)
	go func() { started <- notified("start", id) }()

	if env := sayReady(t, root, id); !strings.Contains(env, "NOTIFY_SOCKET=/run/notify/notify.sock\x00") {
		t.Errorf("the container has the environment %q", env)
	}
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"READY=1\n", "MAINPID=" + string(pid) + "\n", "BARRIER=1"} {
		buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
		n, on, _, _, err := l.ReadMsgUnix(buf, oob)
		if n < 0 || string(buf[:n]) != want {
			t.Fatalf("the manager got %q, %v; want %q", buf[:n], err, want)
		}
		closeAll(t, oob[:on]) // the barrier ends
	}
	if err := <-started; err != nil {
		t.Errorf("start: %v", err)
	}
}

// TestBadIDsTouchNothing: an id that climbs names the directory of another container, or any other.
// create and run made the directory of the notify socket there, and removed it when the engine
// refused the id.
func TestBadIDsTouchNothing(t *testing.T) {
	const id = "x/../victim"
	_, root, dir := box(t, false, "/bin/true")
	kept := filepath.Join(root[1], "victim", "kept")
	for _, args := range [][]string{
		{"create", "--bundle", dir, id},
		{"run", "--bundle", dir, id},
		{"run", "--detach", "--bundle", dir, id},
		{"restore", "--bundle", dir, id},
		{"start", id},
		{"delete", "--force", id},
		{"delete", "--force", "good", id},
		{"kill", id, "KILL"},
		{"exec", id, "/bin/true"},
		{"state", id},
		{"ps", id, "-ef"},
		{"create", "--bundle", dir, ""},
		{"create", "--bundle", dir, ".."},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			if err := os.MkdirAll(kept, 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := program(append(root, args...)...)
			cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+filepath.Join(t.TempDir(), "host.sock"))
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "invalid container id") {
				t.Errorf("%v, %s; want an invalid container id", err, out)
			}
			if _, err := os.Stat(kept); err != nil {
				t.Errorf("the other container's directory: %v", err)
			}
			left, err := os.ReadDir(root[1])
			if err != nil || len(left) != 1 {
				t.Errorf("the state directory holds %v, want the other container's only: %v", left, err)
			}
		})
	}
}

// sayReady sends what a program in the container would, as soon as that can, and returns
// that program's environment.
func sayReady(t *testing.T, root []string, id string) string {
	t.Helper()
	addr := &net.UnixAddr{Name: filepath.Join(root[1], cli.NotifyPrefix+id, cli.NotifyName), Net: "unixgram"}
	for deadline := time.Now().Add(30 * time.Second); ; {
		out, err := program(append(root, "exec", id, "/bin/sh", "-c", "grep -q sleep /proc/1/cmdline && test -S /run/notify/notify.sock && cat /proc/1/environ")...).Output()
		if err == nil {
			conn, err := net.DialUnix("unixgram", nil, addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("STATUS=nearly\nREADY=1")); err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the container has no socket: %v", err)
		}
	}
}

func closeAll(t *testing.T, oob []byte) {
	t.Helper()
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		t.Fatal(err)
	}
	for i := range msgs {
		fds, _ := unix.ParseUnixRights(&msgs[i])
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}
