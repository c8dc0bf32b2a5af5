package podinit_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	_ "github.com/coracle-project/coracle/shim/podinit" // this test binary is the init, too
)

// start runs the init in a PID namespace of its own.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, for a PID namespace")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{
		Path: self, Args: []string{"/coracle-pod-init"}, Env: []string{},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestEndsOnSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := start(t)
		// An init ignores signals that it does not wait for yet.
		awaitWaiting(t, cmd.Process.Pid)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

// Orphans of the namespace are reaped: none is left as a zombie.
func TestReaps(t *testing.T) {
	cmd := start(t)
	awaitWaiting(t, cmd.Process.Pid)
	// Twenty orphans, by shells that end before their children.
	sh := exec.Command("nsenter", "-p", "-t", fmt.Sprint(cmd.Process.Pid), "sh", "-c",
		"i=0; while [ $i -lt 20 ]; do (sh -c 'true & exit' &) ; i=$((i+1)); done")
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	for range 1_000_000 { // the reaping has no event that we could see
		if b, err := os.ReadFile(path); err != nil || len(strings.TrimSpace(string(b))) == 0 {
			break
		}
	}
	if b, err := os.ReadFile(path); err != nil || len(strings.TrimSpace(string(b))) != 0 {
		t.Errorf("children left: %q, %v", b, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// awaitWaiting returns when the init has begun its work and sleeps.
func awaitWaiting(t *testing.T, pid int) {
	t.Helper()
	for range 1_000_000 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), " (pod-init) S ") {
			return
		}
	}
	t.Fatal("the init does not begin")
}
