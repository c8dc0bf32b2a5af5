package podinit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

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

// denied is the environment variable of a process that becomes the init under a filter that denies
// the system call of this number, as the profile of a sandbox can.
const denied = "PODINIT_TEST_DENIED"

func TestMain(m *testing.M) {
	nr, err := strconv.ParseUint(os.Getenv(denied), 10, 32)
	if err != nil {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	rules := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(nr)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	filter := unix.SockFprog{Len: uint16(len(rules)), Filter: &rules[0]}
	err = errors.Join(
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0),
	)
	if err == nil {
		err = unix.Exec("/proc/self/exe", []string{"/coracle-pod-init"}, nil)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}

// Regression: where a filter denied it to wait for signals, it tried forever and used a whole CPU.
func TestEndsWhereItCannotWork(t *testing.T) {
	under := func(nr int) *exec.Cmd {
		var stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(cancel)
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Env, cmd.Stderr = []string{fmt.Sprintf("%s=%d", denied, nr)}, &stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for name, nr := range map[string]int{"rt_sigtimedwait": unix.SYS_RT_SIGTIMEDWAIT, "wait4": unix.SYS_WAIT4} {
		cmd := under(nr)
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("without %s: %v: %s, want exit status 1", name, err, cmd.Stderr)
		}
	}
	cmd := under(unix.SYS_MOUNT) // one that it does not need
	awaitWaiting(t, cmd.Process.Pid)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("without mount: %v: %s", err, cmd.Stderr)
	}
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

// It has its filter, and is not dumpable: a process with the same user cannot read which program it
// is.
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
	for end := time.Now().Add(time.Minute); ; { // the reaping has no event that we could see
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(strings.TrimSpace(string(b))) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("children left: %q", b)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// awaitWaiting returns when the init has started its work and sleeps.
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
