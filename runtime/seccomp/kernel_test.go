package seccomp

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// command gives an order to another process. Its standard output is the answer.
func command(t *testing.T, o order) (answer, string, error) {
	t.Helper()
	in, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", confinedArg)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &stderr
	err = cmd.Run()
	var a answer
	if err == nil && o.Exec == nil {
		if err := json.Unmarshal(out.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
	}
	return a, out.String() + stderr.String(), err
}

func results(t *testing.T, p *specs.LinuxSeccomp, calls ...sysCall) answer {
	t.Helper()
	a, out, err := command(t, order{Profile: p, Calls: calls, Answer: 4242})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(a.Results) != len(calls) {
		t.Fatalf("%d results for %d calls", len(a.Results), len(calls))
	}
	return a
}

func TestKernelTakesErrnosAndArguments(t *testing.T) {
	p := &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Syscalls: []specs.LinuxSyscall{
			{Names: []string{"getppid"}, Action: specs.ActErrno},
			{Names: []string{"getuid"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.EXDEV))},
			{Names: []string{"getpriority"}, Action: specs.ActErrno, ErrnoRet: new(uint(unix.ENOTTY)), Args: []specs.LinuxSeccompArg{
				{Index: 0, Op: specs.OpEqualTo, Value: 0},
				{Index: 1, Op: specs.OpGreaterEqual, Value: 1 << 32},
			}},
		},
	}
	priority := func(who uint64) sysCall {
		return sysCall{Nr: unix.SYS_GETPRIORITY, Args: [maxArgs]uint64{0, who}}
	}
	a := results(t, p, sysCall{Nr: unix.SYS_GETPPID}, sysCall{Nr: unix.SYS_GETUID}, sysCall{Nr: unix.SYS_GETPID},
		priority(0), priority(1<<32-1), priority(1<<32), priority(1<<63))
	for i, want := range []syscall.Errno{unix.EPERM, unix.EXDEV, 0, 0, unix.ESRCH, unix.ENOTTY, unix.ENOTTY} {
		if got := a.Results[i].Errno; got != want {
			t.Errorf("call %d: %v, want %v", i, got, want)
		}
	}
	if a.Listener != -1 {
		t.Errorf("listener %d without SCMP_ACT_NOTIFY", a.Listener)
	}
}

func TestKernelAnswersUnknownCallsWithENOSYS(t *testing.T) {
	p := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno,
		// What the thread needs to end.
		Syscalls: []specs.LinuxSyscall{{
			Names: []string{
				"getpid", "futex", "exit", "mmap", "munmap", "madvise", "sigaltstack", "rt_sigprocmask",
				"rt_sigreturn", "sched_yield", "nanosleep", "tgkill", "gettid", "write", "epoll_pwait", "clock_gettime",
			},
			Action: specs.ActAllow,
		}},
	}
	a := results(t, p, sysCall{Nr: unix.SYS_GETPID}, sysCall{Nr: unix.SYS_GETPPID}, sysCall{Nr: 600})
	for i, want := range []syscall.Errno{0, unix.EPERM, unix.ENOSYS} {
		if got := a.Results[i].Errno; got != want {
			t.Errorf("call %d: %v, want %v", i, got, want)
		}
	}
}

func TestKernelKills(t *testing.T) {
	for _, act := range []specs.LinuxSeccompAction{specs.ActKillProcess, specs.ActTrap} {
		p := &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow,
			Syscalls:      []specs.LinuxSyscall{{Names: []string{"getppid"}, Action: act}},
		}
		_, out, err := command(t, order{Profile: p, Calls: []sysCall{{Nr: unix.SYS_GETPPID}}})
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("%s: %v", act, err)
			continue
		}
		// Go's runtime catches the signal of SCMP_ACT_TRAP and says so.
		status := exit.Sys().(syscall.WaitStatus)
		if killed := status.Signaled() && status.Signal() == unix.SIGSYS; !killed && !strings.Contains(out, "SIGSYS") {
			t.Errorf("%s: %v: %s", act, exit, out)
		}
	}
}

func TestKernelRunsProgramsUnderDefaultProfile(t *testing.T) {
	p := defaultProfile(t)
	calls := []struct {
		call sysCall
		want syscall.Errno
	}{
		{sysCall{Nr: unix.SYS_PERSONALITY, Args: [maxArgs]uint64{0xffffffff}}, 0},
		{sysCall{Nr: unix.SYS_PERSONALITY, Args: [maxArgs]uint64{0x40000}}, unix.EPERM},
		{sysCall{Nr: unix.SYS_SOCKET, Args: [maxArgs]uint64{unix.AF_VSOCK, unix.SOCK_STREAM}}, unix.EPERM},
		{sysCall{Nr: unix.SYS_UNSHARE, Args: [maxArgs]uint64{unix.CLONE_NEWUSER}}, unix.EPERM},
		{sysCall{Nr: unix.SYS_CLONE3}, unix.ENOSYS},
		{sysCall{Nr: unix.SYS_DUP, Args: [maxArgs]uint64{1 << 20}}, unix.EBADF},
	}
	var list []sysCall
	for _, c := range calls {
		list = append(list, c.call)
	}
	a := results(t, p, list...)
	for i, c := range calls {
		if got := a.Results[i].Errno; got != c.want {
			t.Errorf("call %+v: %v, want %v", c.call, got, c.want)
		}
	}

	// A whole Go program under the profile: this one, listing its tests.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, out, err := command(t, order{Profile: p, Exec: []string{self, "-test.list=^" + t.Name() + "$"}})
	if err != nil || !strings.Contains(out, t.Name()) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestKernelNotifies(t *testing.T) {
	p := &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		ListenerPath:  "/run/agent.sock",
		Syscalls:      []specs.LinuxSyscall{{Names: []string{"getppid"}, Action: specs.ActNotify}},
	}
	for name, flags := range map[string][]specs.LinuxSeccompFlag{
		"default flags":       nil,
		"wait killable, log":  {specs.LinuxSeccompFlagWaitKillableRecv, specs.LinuxSeccompFlagLog},
		"speculation allowed": {specs.LinuxSeccompFlagSpecAllow},
	} {
		t.Run(name, func(t *testing.T) {
			p := *p
			p.Flags = flags
			a := results(t, &p, sysCall{Nr: unix.SYS_GETPPID}, sysCall{Nr: unix.SYS_GETPID})
			if a.Listener < 0 {
				t.Error("no listener")
			}
			if got := a.Results[0]; got.Value != 4242 || got.Errno != 0 {
				t.Errorf("the agent's answer came as %+v", got)
			}
			if got := a.Results[1]; got.Value == 4242 || got.Errno != 0 {
				t.Errorf("getpid, which notifies no one: %+v", got)
			}
		})
	}
}

func TestKernelTakesTSYNC(t *testing.T) {
	// All threads are confined, so the agent in the same process must not be: nothing is
	// called that it would have to answer.
	p := &specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Flags:         []specs.LinuxSeccompFlag{flagTSYNC},
		ListenerPath:  "/run/agent.sock",
		Syscalls:      []specs.LinuxSyscall{{Names: []string{"getppid"}, Action: specs.ActNotify}},
	}
	if a := results(t, p, sysCall{Nr: unix.SYS_GETPID}); a.Listener < 0 {
		t.Error("no listener")
	}
}
