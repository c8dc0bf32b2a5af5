package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// asProgram in the environment makes the test binary the program under test.
const asProgram = "CORACLE_OCI_TEST_MAIN"

// session is coracle-oci in a terminal of its own, with this test in front of it.
type session struct {
	t     *testing.T
	front console.Console
	out   *bufio.Reader
	side  *os.File // the terminal as the program has it
	cmd   *exec.Cmd
}

// box makes a bundle whose program is args and returns the flags that find it.
func box(t *testing.T, terminal bool, args ...string) (id string, root []string, dir string) {
	dir = runtimetest.Bundle(t)
	id = fmt.Sprintf("pty-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(dir)))
	spec := runtimetest.Spec(id, args...)
	spec.Process.Terminal = terminal
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	t.Cleanup(func() { cleanUp(t, state, id) })
	return id, []string{"--root", state}, dir
}

func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// inTerminal starts coracle-oci as the leader of a terminal with the size given.
func inTerminal(t *testing.T, size console.WinSize, args ...string) *session {
	t.Helper()
	front, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close() })
	if err := front.Resize(size); err != nil {
		t.Fatal(err)
	}
	side, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { side.Close() })
	s := &session{t: t, front: front, out: bufio.NewReader(front), side: side, cmd: program(args...)}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = side, side, side
	s.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A test that hangs is ended by killing what it waits for.
	kill := time.AfterFunc(30*time.Second, func() { s.cmd.Process.Kill(); side.Close(); front.Close() })
	t.Cleanup(func() { kill.Stop() })
	return s
}

// expect reads lines until one starts with want, and returns the rest of that one.
func (s *session) expect(want string) (rest string) {
	s.t.Helper()
	var seen []string
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("waiting for %q: %v; got %q", want, err, seen)
		}
		line = strings.TrimRight(line, "\r\n")
		if rest, ok := strings.CutPrefix(line, want); ok {
			return rest
		}
		seen = append(seen, line)
	}
}

func (s *session) write(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.front, text); err != nil {
		s.t.Fatal(err)
	}
}

// cooked says whether the program's terminal edits lines and echoes, as at first.
func (s *session) cooked() bool {
	s.t.Helper()
	raw, err := s.side.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	var mode *unix.Termios
	var ierr error
	if err := raw.Control(func(fd uintptr) { mode, ierr = unix.IoctlGetTermios(int(fd), unix.TCGETS) }); err != nil || ierr != nil {
		s.t.Fatal(err, ierr)
	}
	return mode.Lflag&unix.ICANON != 0 && mode.Lflag&unix.ECHO != 0
}

// converse checks, with script in the container, that the terminal is raw meanwhile,
// that the container's has our size and its changes, that ^D ends its input and not
// ours, and that ours is as before in the end.
func (s *session) converse() {
	s.t.Helper()
	s.write("hello\n")
	s.expect("got hello at 33 101")
	if s.cooked() {
		s.t.Error("the terminal is not in raw mode while the program runs")
	}
	if err := s.front.Resize(console.WinSize{Height: 44, Width: 122}); err != nil {
		s.t.Fatal(err)
	}
	// SIGWINCH takes its time, and nothing tells when it has arrived.
	for size := "33 101"; size != "44 122"; {
		s.write("again\n")
		size = s.expect("got again at ")
	}
	s.write("\x04")
	s.expect("end")
	var code int
	if err := s.cmd.Wait(); err != nil {
		code = s.cmd.ProcessState.ExitCode()
	}
	if code != 7 {
		s.t.Errorf("exit status %d, want 7", code)
	}
	if !s.cooked() {
		s.t.Error("the terminal was not put back from raw mode")
	}
}

// script is converse's other side.
const script = `while read line; do echo got $line at $(stty size); done; echo end; exit 7`

func TestRunInTerminal(t *testing.T) {
	id, root, dir := box(t, true, "/bin/sh", "-c", script)
	inTerminal(t, console.WinSize{Height: 33, Width: 101}, append(root, "run", "--bundle", dir, id)...).converse()
}

func TestExecInTerminal(t *testing.T) {
	id, root := runningBox(t)
	inTerminal(t, console.WinSize{Height: 33, Width: 101}, append(root, "exec", "--tty", id, "/bin/sh", "-c", script)...).converse()
}

// What a program leaves running in its terminal does not keep exec from ending, and
// what was written before is not lost.
func TestTerminalLeftOpen(t *testing.T) {
	id, root := runningBox(t)
	s := inTerminal(t, console.WinSize{Height: 33, Width: 101}, append(root,
		"exec", "--tty", id, "/bin/sh", "-c", `trap "" HUP; sleep 1000 & echo bye; exit 4`)...)
	s.expect("bye")
	if err := s.cmd.Wait(); err == nil || s.cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("exec ended with %v, want exit status 4", err)
	}
}

// runningBox is a detached container that sleeps, deleted at the test's end.
func runningBox(t *testing.T) (id string, root []string) {
	id, root, dir := box(t, false, "/bin/sleep", "1000")
	// Without pipes for its output, which the container would keep open.
	if err := program(append(root, "run", "--detach", "--bundle", dir, id)...).Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := program(append(root, "delete", "--force", id)...).CombinedOutput(); err != nil {
			t.Errorf("delete: %v: %s", err, out)
		}
	})
	return id, root
}
