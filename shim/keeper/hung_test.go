package keeper_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

func quit(t testing.TB, k *keeper.Keeper) {
	t.Helper()
	if err := k.Quit(); err != nil && k.Err() == nil { // a test may have lost the keeper
		t.Error(err)
	}
	k.Close()
}

// serveOld answers one client as a keeper before version 1 does, which knows WHO.
func serveOld(l *net.UnixListener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	for b := make([]byte, 1000); ; {
		n, err := c.Read(b)
		if n == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		code, value := -int32(syscall.ENOSYS), uint32(0)
		if binary.NativeEndian.Uint32(b) == 7 {
			code, value = 0, 4711
		}
		if _, err := c.Write(binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, uint32(code)), value)); err != nil {
			return err
		}
	}
}

// dead reports whether a process has ended, reaped or not.
func dead(pid int) bool {
	s, err := pidfd.ReadStat(pid)
	return errors.Is(err, os.ErrNotExist) || s.State == 'Z'
}

// A keeper that does not answer is distinguished from one that is gone, in time, and replaced.
func TestHung(t *testing.T) {
	k, dir := start(t)
	self, _ := os.Executable()
	pid := k.PID()
	patient, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer patient.Close()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := k.Ping(ctx); !errors.Is(err, keeper.ErrHung) || errors.Is(err, keeper.ErrGone) {
		t.Errorf("ping: %v", err)
	}
	<-k.Done() // watchers get the signal
	k.Watch()
	begin := time.Now()
	if _, err := k.List(""); !errors.Is(err, keeper.ErrHung) || !errors.Is(k.Err(), keeper.ErrHung) || time.Since(begin) > keeper.Timeout/2 {
		t.Errorf("the next call: %v after %v, cause %v", err, time.Since(begin), k.Err())
	}
	calls := map[string]func() error{
		"dial": func() error { _, err := keeper.Dial(dir); return err },
		"put":  func() error { return patient.Put("x", "", os.Stdout) },
	}
	failed := make(chan error, len(calls))
	for name, call := range calls {
		go func() {
			if err := call(); !errors.Is(err, keeper.ErrHung) {
				failed <- fmt.Errorf("%s: %w", name, err)
				return
			}
			failed <- nil
		}()
	}
	for range calls {
		select {
		case err := <-failed:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(keeper.Timeout + time.Minute):
			t.Fatal("a call to a stopped keeper hangs")
		}
	}
	report, err := keeper.Start(t.Context(), dir, self)
	if err != nil || !strings.Contains(report, "coracle-keeper") || !strings.Contains(report, "wchan") {
		t.Errorf("start: report %q, %v", report, err)
	}
	if !dead(pid) {
		t.Error("the hung keeper lives")
	}
	next, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer quit(t, next)
	if err := next.Put("x", "", os.Stdout); err != nil || next.PID() == pid {
		t.Errorf("the next keeper, %d: %v", next.PID(), err)
	}
}

// connect(2) to a socket with a full queue.
func TestDialFullQueue(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, keeper.SocketName)}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	first, err := sock.Dial(dir, keeper.SocketName, "unixpacket")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := keeper.Dial(dir); !errors.Is(err, keeper.ErrHung) || !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("dial: %v", err)
	}
}

// Kill finds the keeper of a directory by its socket, whose name may be lost. It finds neither the
// keeper of another directory nor a process that only has the same name.
func TestKillFindsTheKeeper(t *testing.T) {
	other, otherDir := start(t)
	k, dir := start(t)
	lookalike := exec.Command("/proc/self/exe", "child", "lookalike")
	stdout, err := lookalike.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lookalike.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = lookalike.Process.Kill()
		_ = lookalike.Wait() // killed
	}()
	if got, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || got != keeper.ProcessName+"\n" {
		t.Fatalf("name %q, %v", got, err)
	}
	if err := os.Remove(filepath.Join(dir, keeper.SocketName)); err != nil {
		t.Fatal(err)
	}
	if report, err := keeper.Kill(t.Context(), dir); err != nil || !strings.Contains(report, "("+keeper.ProcessName+")") {
		t.Errorf("kill: %q, %v", report, err)
	}
	if !dead(k.PID()) {
		t.Error("the keeper lives")
	}
	if _, err := keeper.Kill(t.Context(), dir); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("kill again: %v", err)
	}
	if err := other.Ping(t.Context()); err != nil {
		t.Errorf("keeper of %s: %v", otherDir, err)
	}
	if dead(lookalike.Process.Pid) {
		t.Error("the lookalike is dead")
	}
}

// ---- no free descriptors ----

// limitFiles sets the soft limit of a process.
func limitFiles(t *testing.T, pid int, n uint64) (old uint64) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return was.Cur
}

func openFiles(t *testing.T, pid int) uint64 {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return uint64(len(fds))
}

// ticks is the CPU time of a process, in hundredths of a second.
func ticks(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var user, system int
	if _, err := fmt.Sscan(f[11]+" "+f[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return user + system
}

// A keeper that cannot accept for lack of descriptors neither spins nor refuses: the client waits,
// and is served when descriptors are free.
func TestAcceptWithoutDescriptors(t *testing.T) {
	k, dir := start(t)
	was := limitFiles(t, k.PID(), openFiles(t, k.PID()))
	before := ticks(t, k.PID())
	c, err := sock.Dial(dir, keeper.SocketName, "unixpacket")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	list := append(binary.NativeEndian.AppendUint32(nil, 4), make([]byte, 13)...)
	if _, err := c.Write(list); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	const pause = 600 * time.Millisecond
	if err := c.SetReadDeadline(time.Now().Add(pause)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(answer); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a client that could not be accepted got %v, %v", answer[:n], err)
	}
	if err := k.Ping(t.Context()); err != nil {
		t.Errorf("an earlier client: %v", err)
	}
	if used := ticks(t, k.PID()) - before; used > 10 {
		t.Errorf("the keeper used %d0 ms of %v", used, pause)
	}
	limitFiles(t, k.PID(), was)
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(answer); err != nil || n != 8 {
		t.Errorf("after the limit was raised: %v, %v", answer[:n], err)
	}
}

// The keeper refuses descriptors that it cannot receive, gives the cause, and continues.
func TestPutWithoutDescriptors(t *testing.T) {
	k, _ := start(t)
	was := limitFiles(t, k.PID(), openFiles(t, k.PID())+1)
	f := mark(t, "x")
	if err := k.Put("x", "", f, f); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("put of two: %v", err)
	}
	if keys, err := k.List(""); err != nil || len(keys) != 0 {
		t.Errorf("list: %v, %v", keys, err)
	}
	limitFiles(t, k.PID(), was)
	if err := k.Put("x", "", f, f); err != nil {
		t.Error(err)
	}
}

// The held descriptors leave room for connections and for a start.
func TestHeldLeaveRoom(t *testing.T) {
	dir := t.TempDir()
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	self, _ := os.Executable()
	cmd := exec.Command("bash", "-c", `ulimit -n 100; exec -a `+keeper.ProcessName+` "$0"`, self)
	cmd.ExtraFiles = []*os.File{socket}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	socket.Close()
	k, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer quit(t, k)
	f, n := mark(t, "x"), 0
	for ; err == nil; n++ {
		err = k.Put(fmt.Sprint(n), "", f)
	}
	if !errors.Is(err, syscall.EMFILE) || n != 76 { // 75 of 100, and the one that failed
		t.Errorf("put number %d: %v", n, err)
	}
	again, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	p, lines := program(t, "end")
	if _, err := again.Supervise(p); err != nil {
		t.Fatal(err)
	}
	line(t, lines)
	if err := again.Forget("p"); err != nil {
		t.Error(err)
	}
	if err := k.Put("0", "", f); err != nil {
		t.Errorf("replace: %v", err)
	}
	if err := k.Del("0"); err != nil {
		t.Error(err)
	}
	if err := k.Put("new", "", f); err != nil {
		t.Errorf("put after del: %v", err)
	}
}
