package keeper_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
	_ "github.com/coracle-project/coracle/shim/keeper/process" // this test binary is the keeper, too
	"github.com/coracle-project/coracle/shim/sock"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		child(os.Args[2:])
	}
	goleak.VerifyTestMain(m)
}

// child is a supervised program: it writes its arguments, and its descriptor 3 if it
// has one, and then does what the first one says.
func child(args []string) {
	extra := ""
	if f := os.NewFile(3, "passed"); f != nil {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			b, _ := io.ReadAll(io.NewSectionReader(f, 0, 100))
			extra = strings.TrimSpace(string(b))
		}
	}
	if args[0] == "lookalike" { // only has the keeper's name
		if err := os.WriteFile("/proc/self/comm", []byte(keeper.ProcessName), 0); err != nil {
			panic(err)
		}
		comm, _ := os.ReadFile("/proc/self/comm")
		os.Stdout.Write(comm)
		select {}
	}
	if args[0] == "poser" {
		if err := pose(args[1]); err != nil {
			panic(err)
		}
		os.Exit(0)
	}
	fmt.Printf("%s env=%s passed=%s\n", strings.Join(args, " "), os.Getenv("MARK"), extra)
	switch args[0] {
	case "shell":
		if err := orphan(os.Stdout, args[1]); err != nil {
			panic(err)
		}
		os.Exit(keeper.ExitStay)
	case "wait": // until its output has no reader: no test leaves it behind
		for {
			if n, _ := unix.Poll([]unix.PollFd{{Fd: 1}}, -1); n > 0 {
				os.Exit(0)
			}
		}
	case "stay":
		os.Exit(keeper.ExitStay)
	case "orphan": // leaves a process behind
		c := exec.Command(os.Args[0], "child", "wait")
		c.Stdout = os.Stdout
		if err := c.Start(); err != nil {
			panic(err)
		}
		fmt.Println(c.Process.Pid)
	}
	os.Exit(0)
}

// eventually polls for a condition that has no event.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("timeout: ", what)
		}
	}
}

func start(t testing.TB) (*keeper.Keeper, string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := keeper.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := keeper.Spawn(self, l); err != nil {
		t.Fatal(err)
	}
	k, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { quit(t, k) })
	if k.PID() <= 1 { // kill(2) would give such a pid another meaning
		t.Fatalf("the keeper's pid is %d", k.PID())
	}
	return k, dir
}

// mark is a file with some text.
func mark(t testing.TB, text string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f
}

func content(t testing.TB, f *os.File) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1000))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestHold(t *testing.T) {
	k, _ := start(t)
	a, b := mark(t, "a"), mark(t, "b")
	for range 100 { // replaced, not added
		if err := k.Put("c/1", "first second", a, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Put("c/2", "", b); err != nil {
		t.Fatal(err)
	}
	meta, files, err := k.Get("c/1")
	if err != nil || meta != "first second" || len(files) != 2 || content(t, files[0]) != "a" || content(t, files[1]) != "b" {
		t.Fatalf("get: %q, %v, %v", meta, files, err)
	}
	for _, f := range files {
		f.Close()
	}
	if keys, err := k.List("c/"); err != nil || !slices.Equal(keys, []string{"c/1", "c/2"}) {
		t.Errorf("list: %v, %v", keys, err)
	}
	if err := k.Del("c/1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.Get("c/1"); !errors.Is(err, keeper.ErrNotFound) {
		t.Errorf("get after del: %v", err)
	}
	if err := k.DelPrefix("c/"); err != nil {
		t.Fatal(err)
	}
	if keys, err := k.List(""); err != nil || len(keys) != 0 {
		t.Errorf("list: %v, %v", keys, err)
	}
}

// More keys than go into one packet.
func TestListPages(t *testing.T) {
	k, _ := start(t)
	f := mark(t, "x")
	const n = 1200
	for i := range n {
		if err := k.Put(fmt.Sprintf("c/%0100d", i), "", f); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := k.List("c/"); err != nil || len(keys) != n {
		t.Errorf("list: %d keys, %v", len(keys), err)
	}
}

func TestBadRequests(t *testing.T) {
	k, _ := start(t)
	f := mark(t, "x")
	for name, err := range map[string]error{
		"empty key":     k.Put("", "", f),
		"long key":      k.Put(strings.Repeat("x", keeper.MaxKey+1), "", f),
		"long meta":     k.Put("x", strings.Repeat("x", keeper.MaxMeta+1), f),
		"no files":      k.Put("x", ""),
		"nil file":      k.Put("x", "", nil),
		"nine files":    k.Put("x", "", f, f, f, f, f, f, f, f, f),
		"NUL in string": k.Put("x\x00y", "", f),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	_, err := k.Supervise(keeper.Program{Name: "x", Path: "/bin/true", Log: f})
	if !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no argv: %v", err)
	}
	_, err = k.Supervise(keeper.Program{Name: "x", Path: "/bin/true", Args: []string{strings.Repeat("x", 9000)}, Log: f})
	if err == nil {
		t.Error("9000 bytes of argv: accepted")
	}
	if keys, err := k.List(""); err != nil || len(keys) != 0 {
		t.Errorf("something was held: %v, %v", keys, err)
	}
}

func TestSupervise(t *testing.T) {
	k, _ := start(t)
	self, _ := os.Executable()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := k.Put("pass/p", "", mark(t, "socket")); err != nil {
		t.Fatal(err)
	}
	pid, err := k.Supervise(keeper.Program{
		Name: "p", Path: self, Args: []string{self, "child", "wait"}, Env: []string{"MARK=m"}, Log: w,
	})
	if err != nil || pid <= 0 {
		t.Fatal(pid, err)
	}
	line := make([]byte, 200)
	for i := range 3 {
		n, err := r.Read(line)
		if err != nil || string(line[:n]) != "wait env=m passed=socket\n" {
			t.Fatalf("start %d: %q, %v", i, line[:n], err)
		}
		now, err := k.Who("p")
		if err != nil || now == 0 || (i > 0 && now == pid) {
			t.Fatalf("start %d: pid %d, was %d, %v", i, now, pid, err)
		}
		pid = now
		if i == 2 {
			if err := k.Forget("p"); err != nil {
				t.Fatal(err)
			}
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Who("p"); !errors.Is(err, keeper.ErrNotFound) {
		t.Errorf("who after forget: %v", err)
	}
	// No one has the log any more: it is not started again.
	w.Close()
	if n, err := r.Read(line); err != io.EOF {
		t.Errorf("after forget: %q, %v", line[:n], err)
	}
}

// A program that ends at once is started ten times, and then once a second.
func TestBackoff(t *testing.T) {
	k, _ := start(t)
	self, _ := os.Executable()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	begin := time.Now()
	if _, err := k.Supervise(keeper.Program{Name: "p", Path: self, Args: []string{self, "child", "end"}, Log: w}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	lines := bufio.NewScanner(r)
	for i := range 11 {
		if !lines.Scan() {
			t.Fatal(i, lines.Err())
		}
	}
	if d := time.Since(begin); d < 900*time.Millisecond {
		t.Errorf("eleven starts in %v", d)
	}
	if err := k.Forget("p"); err != nil {
		t.Fatal(err)
	}
}

func TestGone(t *testing.T) {
	dir := t.TempDir()
	if _, err := keeper.Dial(dir); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("dial: %v", err)
	}
	k, dir := start(t)
	other, err := keeper.Dial(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Quit(); err != nil {
		t.Fatal(err)
	}
	other.Watch()
	<-other.Done()
	if _, err := other.List(""); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("list: %v", err)
	}
	other.Close()
}

// Whatever a client sends, the keeper answers each packet and lives.
func FuzzRequest(f *testing.F) {
	k, dir := start(f)
	request := func(op, flags, arg uint32, nargs, nenv uint16, rest string) []byte {
		b := binary.NativeEndian.AppendUint32(nil, op)
		b = binary.NativeEndian.AppendUint32(b, flags)
		b = binary.NativeEndian.AppendUint32(b, arg)
		b = binary.NativeEndian.AppendUint16(b, nargs)
		return append(binary.NativeEndian.AppendUint16(b, nenv), rest...)
	}
	for op := range uint32(12) {
		f.Add(request(op, 0, 0, 0, 0, "key\x00"))
		f.Add(request(op, 3, 1<<31, 65535, 65535, "key\x00more"))
		f.Add(request(op, 0, 0, 1, 1, "name\x00/path\x00arg\x00env=x\x00"))
	}
	f.Add([]byte{})
	f.Add([]byte("short"))
	f.Add(request(1, 0, 0, 0, 0, strings.Repeat("x", 70_000)))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) >= 4 && binary.NativeEndian.Uint32(packet) == 8 {
			t.Skip("QUIT")
		}
		if len(packet) == 0 {
			t.Skip("no packet")
		}
		c, err := sock.Dial(dir, keeper.SocketName, "unixpacket")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		answered(t, c, packet)
		if _, err := k.List(""); err != nil {
			t.Fatal(err)
		}
	})
}

func answered(t *testing.T, c *net.UnixConn, packet []byte) {
	if _, err := c.Write(packet); err != nil {
		t.Skip(err) // larger than the socket takes
	}
	if n, err := c.Read(make([]byte, 1<<16)); err != nil || n < 8 {
		t.Fatalf("answer of %d bytes, %v", n, err)
	}
}

func TestSocketIsPrivate(t *testing.T) {
	_, dir := start(t)
	st, err := os.Stat(filepath.Join(dir, keeper.SocketName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}
