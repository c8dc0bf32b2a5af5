package keeper_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
	"github.com/coracle-project/coracle/shim/sock"
)

// program returns this test binary as a supervised program, and its output.
func program(t testing.TB, args ...string) (keeper.Program, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return keeper.Program{Name: "p", Path: self, Args: append([]string{self, "child"}, args...), Log: w}, bufio.NewScanner(r)
}

func line(t testing.TB, s *bufio.Scanner) string {
	t.Helper()
	if !s.Scan() {
		t.Fatal("no line: ", s.Err())
	}
	return s.Text()
}

func status(t testing.TB, k *keeper.Keeper, name string) keeper.Status {
	t.Helper()
	s, err := k.Status(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func kill(t testing.TB, pid int) {
	t.Helper()
	send(t, pid, syscall.SIGKILL)
}

func send(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("signal to process %d", pid)
	}
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}

// The next start uses the last command line, even if the program runs when it is set.
func TestChangedCommandLine(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "wait", "old")
	pid, err := k.Supervise(p)
	if err != nil {
		t.Fatal(err)
	}
	if got := line(t, lines); !strings.HasPrefix(got, "wait old ") {
		t.Fatalf("first start: %q", got)
	}
	p.Args = append(p.Args[:2:2], "wait", "new")
	p.Env = []string{"MARK=new"}
	if again, err := k.Supervise(p); err != nil || again != pid {
		t.Fatalf("supervise what runs: pid %d, want %d, %v", again, pid, err)
	}
	kill(t, pid)
	if got := line(t, lines); !strings.HasPrefix(got, "wait new env=new") {
		t.Errorf("second start: %q", got)
	}
	s := status(t, k, "p")
	if s.State != keeper.Running || s.PID == pid || s.Starts != 2 || s.Ends != 1 || s.Started.IsZero() ||
		!s.ExitKnown || !s.Exit.Signaled() || s.Exit.Signal() != syscall.SIGKILL {
		t.Errorf("status %+v", s)
	}
}

// A program that ends too often waits. A Supervise that changes nothing does not shorten the wait;
// a new command line does.
func TestSuperviseWhileWaiting(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "wait")
	self, wait := p.Path, p.Args
	p.Path, p.Args = "/bin/sh", []string{"sh", "-c", "echo started"} // ends before the test continues
	if _, err := k.Supervise(p); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		line(t, lines)
	}
	var s keeper.Status
	eventually(t, "the program is paused", func() bool {
		s = status(t, k, "p")
		return s.State == keeper.Waiting && !s.Next.IsZero()
	})
	if s.Starts != 10 || s.Ends != 10 || s.PID != 0 || !s.ExitKnown || s.Exit.ExitStatus() != 0 || !s.Exit.Exited() {
		t.Errorf("status %+v", s)
	}
	if pid, err := k.Supervise(p); err != nil || pid != 0 && time.Now().Before(s.Next) {
		t.Errorf("supervise what waits: pid %d, %v", pid, err)
	}
	p.Path, p.Args = self, wait
	if pid, err := k.Supervise(p); err != nil || pid == 0 {
		t.Errorf("supervise with another command line: pid %d, %v", pid, err)
	}
	if s := status(t, k, "p"); s.State != keeper.Running || s.Starts < 11 {
		t.Errorf("status %+v", s)
	}
}

// A program that exits with ExitStay is started only by the next Supervise.
func TestExitStay(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "stay")
	if _, err := k.Supervise(p); err != nil {
		t.Fatal(err)
	}
	for starts := 1; starts <= 12; starts++ { // more than the limit of quick starts
		line(t, lines)
		eventually(t, "the program stays", func() bool { return status(t, k, "p").State == keeper.Stayed })
		// The keeper starts due programs before it waits for requests, so this one would have
		// started.
		if s := status(t, k, "p"); s.Starts != starts || s.Ends != starts || s.PID != 0 || !s.Next.IsZero() ||
			!s.ExitKnown || s.Exit.ExitStatus() != keeper.ExitStay {
			t.Fatalf("status %+v, want %d starts", s, starts)
		}
		if pid, err := k.Supervise(p); err != nil || pid == 0 {
			t.Fatalf("supervise: pid %d, %v", pid, err)
		}
	}
}

// adopted starts a process that is not a child of the keeper and makes the keeper adopt it.
func adopted(t *testing.T, k *keeper.Keeper, p keeper.Program) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(p.Path, p.Args[1:]...)
	cmd.Stdout = p.Log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the test may have waited for it
	})
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p.PID, p.PIDFD = cmd.Process.Pid, f
	if pid, err := k.Supervise(p); err != nil || pid != p.PID {
		t.Fatalf("adopt %d: %d, %v", p.PID, pid, err)
	}
	return cmd
}

// The keeper learns how an adopted process ended, if the kernel can report it.
func TestAdoptedEnd(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "wait")
	cmd := adopted(t, k, p)
	line(t, lines)
	if s := status(t, k, "p"); s.State != keeper.Running || s.PID != cmd.Process.Pid || s.Starts != 0 || !s.Started.IsZero() || s.ExitKnown {
		t.Errorf("adopted: %+v", s)
	}
	// The kernel tells its end once it is reaped, for which the keeper does not wait long.
	send(t, k.PID(), syscall.SIGSTOP)
	kill(t, cmd.Process.Pid)
	_ = cmd.Wait()
	send(t, k.PID(), syscall.SIGCONT)
	line(t, lines)
	s := status(t, k, "p")
	if s.State != keeper.Running || s.Starts != 1 || s.Ends != 1 {
		t.Errorf("after its end: %+v", s)
	}
	if want := kernelTellsExit(t); s.ExitKnown != want || (want && s.Exit.Signal() != syscall.SIGKILL) {
		t.Errorf("exit status %v, known %v, want %v", s.Exit, s.ExitKnown, want)
	}
	// The current process is the keeper's child, and can still be adopted (a daemon does that with
	// itself).
	f, err := pidfd.Open(s.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p.PID, p.PIDFD = s.PID, f
	if _, err := k.Supervise(p); err != nil {
		t.Fatal(err)
	}
	kill(t, s.PID)
	line(t, lines)
	if s := status(t, k, "p"); s.Starts != 2 || s.Ends != 2 || !s.ExitKnown || s.Exit.Signal() != syscall.SIGKILL {
		t.Errorf("after the end of a child: %+v", s)
	}
}

// A parent that does not reap an adopted process does not prevent its restart.
func TestAdoptedIsNotReaped(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "wait")
	cmd := adopted(t, k, p)
	line(t, lines)
	kill(t, cmd.Process.Pid)
	line(t, lines)
	if s := status(t, k, "p"); s.State != keeper.Running || s.Starts != 1 || s.ExitKnown {
		t.Errorf("status %+v", s)
	}
}

func kernelTellsExit(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}

// Processes that a dead program leaves behind become children of the keeper, which reaps them.
func TestOrphans(t *testing.T) {
	k, _ := start(t)
	p, lines := program(t, "orphan")
	if _, err := k.Supervise(p); err != nil {
		t.Fatal(err)
	}
	var orphan int
	for orphan == 0 {
		orphan, _ = strconv.Atoi(line(t, lines)) // skips the lines of the two programs
	}
	if err := k.Forget("p"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the orphan has come", func() bool { return parent(t, orphan) == k.PID() })
	kill(t, orphan)
	eventually(t, "the orphan is reaped", func() bool { return errors.Is(syscall.Kill(orphan, 0), syscall.ESRCH) })
	p.Log.Close()
	for lines.Scan() { // other starts before Forget
		if pid, err := strconv.Atoi(lines.Text()); err == nil {
			kill(t, pid)
		}
	}
}

func parent(t *testing.T, pid int) (ppid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	if _, err := fmt.Sscan(string(b[strings.LastIndexByte(string(b), ')')+1:]), &state, &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

// A keeper that was killed loses its counts. The next one adopts the running programs.
func TestReplacedKeeper(t *testing.T) {
	k, dir := start(t)
	p, lines := program(t, "wait")
	pid, err := k.Supervise(p)
	if err != nil {
		t.Fatal(err)
	}
	line(t, lines)
	kill(t, k.PID())
	k.Watch()
	if !errors.Is(k.Err(), keeper.ErrGone) {
		t.Errorf("cause %v", k.Err())
	}
	if report, err := keeper.Start(t.Context(), dir, p.Path); report != "" || err != nil {
		t.Fatalf("start: %q, %v", report, err)
	}
	next, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { quit(t, next) })
	if _, err := next.Status("p"); !errors.Is(err, keeper.ErrNotFound) {
		t.Errorf("status: %v", err)
	}
	f, err := pidfd.Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p.PID, p.PIDFD = pid, f
	if _, err := next.Supervise(p); err != nil {
		t.Fatal(err)
	}
	if s := status(t, next, "p"); s.State != keeper.Running || s.PID != pid || s.Starts != 0 || s.Ends != 0 {
		t.Errorf("adopted: %+v", s)
	}
	kill(t, pid)
	line(t, lines)
	if s := status(t, next, "p"); s.State != keeper.Running || s.PID == pid || s.Starts != 1 || s.Ends != 1 {
		t.Errorf("after its end: %+v", s)
	}
}

// A large log is emptied at a start, if the keeper is asked to.
func TestBoundLog(t *testing.T) {
	k, _ := start(t)
	for _, bound := range []bool{false, true} {
		path := t.TempDir() + "/log"
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		const size = 8<<20 + 1
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		p, _ := program(t, "stay")
		p.Log, p.BoundLog = f, bound
		if _, err := k.Supervise(p); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the program stays", func() bool { return status(t, k, "p").State == keeper.Stayed })
		st, err := f.Stat()
		if err != nil || st.Size() == 0 || (st.Size() < size) != bound {
			t.Errorf("bound %v: log of %d bytes, %v", bound, st.Size(), err)
		}
	}
}

// Clients before version 1 get the answers that they know: WHO is a head of 8 bytes.
func TestOldClient(t *testing.T) {
	k, dir := start(t)
	p, _ := program(t, "wait")
	pid, err := k.Supervise(p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := sock.Dial(dir, keeper.SocketName, "unixpacket")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	who := binary.NativeEndian.AppendUint32(nil, 7)
	if _, err := c.Write(append(append(who, make([]byte, 12)...), "p\x00"...)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := c.Read(b)
	if err != nil || n != 8 || binary.NativeEndian.Uint32(b) != 0 || binary.NativeEndian.Uint32(b[4:]) != uint32(pid) {
		t.Errorf("answer %v, %v", b[:n], err)
	}
}

// A keeper before version 1 answers ENOSYS to requests that it does not know.
func TestOldKeeper(t *testing.T) {
	dir := t.TempDir()
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serveOld(l) }()
	k, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	if k.Version() != 0 || k.Has(keeper.FeatureStatus) || k.PID() != 0 {
		t.Errorf("version %d, pid %d", k.Version(), k.PID())
	}
	if err := k.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if s, err := k.Status("p"); err != nil || s != (keeper.Status{State: keeper.Running, PID: 4711}) {
		t.Errorf("status %+v, %v", s, err)
	}
	k.Close()
	if err := errors.Join(<-served, l.Close()); err != nil {
		t.Error(err)
	}
}
