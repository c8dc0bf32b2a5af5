package lc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// A program that has the name of libcontainer's init kept Start waiting for it, if another Start
// had been killed after it let init go.
func TestProgramNamedLikeInit(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "exec.fifo")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	passed, err := os.OpenFile(gate, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer passed.Close()
	// When told, it closes what libcontainer closes before it executes the program.
	cmd := exec.CommandContext(t.Context(), "sh", "-c",
		"printf 'runc:[2:INIT]' >/proc/$$/comm; echo named; read told; exec 3<&-; echo closed; read end")
	cmd.ExtraFiles = []*os.File{passed}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(stdin.Close(), ignoreExit(cmd.Wait())); err != nil {
			t.Error(err)
		}
	}()
	lines := bufio.NewReader(stdout)
	says := func(want string) {
		t.Helper()
		if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
			t.Fatalf("the process says %q, %v", got, err)
		}
	}
	says("named")
	fifo, err := os.OpenFile(gate, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifo.Close()
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	if err := awaitGo(ctx, fifo, pidfd, cmd.Process.Pid); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("init has the FIFO: %v", err)
	}
	if _, err := io.WriteString(stdin, "told\n"); err != nil {
		t.Fatal(err)
	}
	says("closed")
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid)); err != nil || string(name) != "runc:[2:INIT]\n" {
		t.Fatalf("name %q, %v", name, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := awaitGo(ctx, fifo, pidfd, cmd.Process.Pid); !errors.Is(err, runtime.ErrRunning) {
		t.Errorf("a program of that name: %v", err)
	}
}

// ignoreExit forgives a status that is not 0.
func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}
