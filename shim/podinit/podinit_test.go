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

// user is who the init of these tests runs as.
const user = 65535

// start runs the init in a PID namespace of its own.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root, for a PID namespace")
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"/coracle-pod-init"}, Env: []string{},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
			Credential: &syscall.Credential{Uid: user, Gid: user},
		},
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

// Processes of the namespace cannot end it.
func TestIgnoresSignalsFromInside(t *testing.T) {
	cmd := start(t)
	pid := cmd.Process.Pid
	awaitWaiting(t, pid)
	for _, sig := range []string{"TERM", "INT"} {
		out, err := exec.Command("nsenter", "-p", "-t", fmt.Sprint(pid), "sh", "-c", "kill -"+sig+" 1").CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", sig, err, out)
		}
		awaitWaiting(t, pid) // kill(2) had woken it
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("a signal from outside: %v", err)
	}
}

// It has its filter, and is not dumpable: a process with the same user cannot read which program it is.
func TestConfined(t *testing.T) {
	cmd := start(t)
	pid := cmd.Process.Pid
	awaitWaiting(t, pid)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	other := exec.Command("sleep", "1000")
	other.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: user, Gid: user}}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	read := func(pid int) error {
		cmd := exec.Command("readlink", fmt.Sprintf("/proc/%d/exe", pid))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd.Run()
	}
	if err := read(other.Process.Pid); err != nil {
		t.Errorf("of a process that is dumpable: %v", err)
	}
	if read(pid) == nil {
		t.Error("init is dumpable")
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
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
		if strings.Contains(string(b), " (pod-init) Z ") {
			t.Fatal("the init has ended")
		}
	}
	t.Fatal("the init does not begin")
}
