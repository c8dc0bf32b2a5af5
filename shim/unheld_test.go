package shim

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// exhausting starts a process, and leaves no descriptor free.
type exhausting struct {
	runtime.Container // what is not called
	pid               int
}

func (e *exhausting) Exec(context.Context, *specs.Process, runtime.ExecOptions) (int, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	return e.pid, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: l.Max})
}

// TestExecThatCannotBeHeld: there is no descriptor for the pidfd of a process that has just been
// started. It is killed, or, where that fails, its intent is kept, by which the next shim kills it.
func TestExecThatCannotBeHeld(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Process.Release()
	said, err := exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(said)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(orphan, unix.SIGKILL) }()
	for name, tc := range map[string]struct {
		pid  int
		kept bool
	}{"a child": {child.Process.Pid, false}, "no child of ours": {orphan, true}} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}), record{ID: "c", Phase: phaseRunning})
			c.init, c.engine = &process{}, &exhausting{pid: tc.pid}
			if err := os.MkdirAll(c.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			// An owner in another pid namespace is not watched.
			e, err := c.addExec("x", execRecord{Owner: &owner{PID: 1}}, []byte("{}"), false)
			if err != nil {
				t.Fatal(err)
			}
			var before unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
				t.Fatal(err)
			}
			_, err = e.start(t.Context())
			if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); rerr != nil {
				t.Fatal(rerr)
			}
			if !errors.Is(err, unix.EMFILE) || errors.Is(err, errUnheld) != tc.kept {
				t.Errorf("start: %v", err)
			}
			if runs := unix.Kill(tc.pid, 0) == nil; runs != tc.kept {
				t.Errorf("it runs, or is a zombie: %v, want %v", runs, tc.kept)
			}
			if _, err := os.Stat(e.path()); (err == nil) != tc.kept {
				t.Errorf("intent: %v, kept: want %v", err, tc.kept)
			}
			if err := e.remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
