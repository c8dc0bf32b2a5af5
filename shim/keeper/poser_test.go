package keeper_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/keeper"
)

// pose makes this process look like the keeper of dir, in its own mount namespace: it has the
// keeper's name, and descriptor 3 is a socket with the same path on another file system.
func pose(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, keeper.SocketName)}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Dup3(fd, 3, 0); err != nil { // the parent has passed a placeholder
		return err
	}
	if err := os.WriteFile("/proc/self/comm", []byte(keeper.ProcessName), 0); err != nil {
		return err
	}
	if _, err := fmt.Println("ready"); err != nil {
		return err
	}
	var gone [1]byte
	if _, err := os.Stdin.Read(gone[:]); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// Regression: a container's process with the keeper's name and a socket with the keeper's path, in
// its own mount namespace, was killed as the keeper, each time it forked.
func TestPoserInAnotherMountNamespace(t *testing.T) {
	k, dir := start(t)
	poser := exec.Command("/proc/self/exe", "child", "poser", dir)
	poser.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	poser.ExtraFiles = []*os.File{os.Stderr}
	poser.Stderr = os.Stderr
	stdin, err := poser.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := poser.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := poser.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close() // ends the poser
		if err := poser.Wait(); err != nil {
			t.Errorf("the poser: %v", err)
		}
	}()
	if got, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || got != "ready\n" {
		t.Fatalf("the poser says %q, %v", got, err)
	}
	// Judged by its path only, it is the keeper.
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", poser.Process.Pid)); err != nil || string(comm) != keeper.ProcessName+"\n" {
		t.Fatalf("the poser's name is %q, %v", comm, err)
	}
	if _, err := keeper.Kill(t.Context(), dir); err != nil {
		t.Errorf("kill: %v", err)
	}
	if _, err := keeper.Kill(t.Context(), dir); !errors.Is(err, keeper.ErrGone) {
		t.Errorf("kill again: %v, want %v", err, keeper.ErrGone)
	}
	if !dead(k.PID()) {
		t.Error("the keeper lives")
	}
	if dead(poser.Process.Pid) {
		t.Error("the poser was killed")
	}
}
