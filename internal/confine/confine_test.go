package confine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain is also the program that is confined.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "confined" {
		os.Exit(confined(os.Args[2]))
	}
	if len(os.Args) > 1 && os.Args[1] == "pipes" {
		os.Exit(pipes(os.Args[2]))
	}
	if len(os.Args) > 1 && os.Args[1] == "leaves" {
		os.Exit(leaves())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests confine programs: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// confined tries what it may and what it must not.
func confined(other string) int {
	var t trial
	t.refused(other)
	data, err := os.ReadFile(Files + "/secret")
	t.check("read", err, nil)
	t.check("write", os.WriteFile(Scratch+"/made", data, 0o644), nil)
	t.check("write where it reads", os.WriteFile(Files+"/open/made", nil, 0o644), unix.EROFS)
	return t.wrong
}

// pipes is a program without directories, which copies what it reads.
func pipes(other string) int {
	var t trial
	t.refused(other)
	if err := os.WriteFile(Scratch+"/confined-test", nil, 0o600); err == nil && hasLandlock() {
		t.wrong++
		fmt.Fprintln(os.Stderr, "wrote to /tmp")
	}
	if net, err := os.Readlink("/proc/self/ns/net"); err != nil || net == os.Args[3] {
		t.wrong++
		fmt.Fprintln(os.Stderr, "network", net, err)
	}
	_, err := io.Copy(os.Stdout, os.Stdin)
	t.check("copy", err, nil)
	return t.wrong
}

// trial counts what was not as it is to be.
type trial struct{ wrong int }

func (t *trial) check(what string, err, want error) {
	if !errors.Is(err, want) {
		t.wrong++
		fmt.Fprintf(os.Stderr, "%s: %v, want %v\n", what, err, want)
	}
}

// refused tries what every program is refused. other is a file that anybody may read.
func (t *trial) refused(other string) {
	if os.Getuid() != Nobody || os.Getgid() != Nobody || os.Getenv("PATH") != "" {
		t.wrong++
		fmt.Fprintln(os.Stderr, "user", os.Getuid(), os.Getgid(), os.Environ())
	}
	_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	t.check("socket", err, unix.EPERM)
	t.check("unshare", unix.Unshare(unix.CLONE_NEWNS), unix.EPERM)
	t.check("mount", unix.Mount("none", "/", "tmpfs", 0, ""), unix.EPERM)
	_, _, errno := unix.Syscall(unix.SYS_BPF, 0, 0, 0)
	t.check("bpf", errno, unix.EPERM)
	_, _, errno = unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	t.check("clone", errno, unix.EPERM)
	_, _, errno = unix.Syscall(unix.SYS_CLONE3, 0, 0, 0)
	t.check("clone3", errno, unix.ENOSYS)
	if _, err := os.ReadFile(other); err == nil && hasLandlock() {
		t.wrong++
		fmt.Fprintln(os.Stderr, "read another file")
	}
	t.check("make a file elsewhere", os.WriteFile("/var/tmp/confined-test", nil, 0o600), unix.EACCES)
}

// leaves ends before what it has started.
func leaves() int {
	child := exec.Command("/bin/sleep", "1000")
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := child.Start()
	if err == nil {
		err = os.WriteFile(Scratch+"/pid", fmt.Append(nil, child.Process.Pid), 0o600)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func hasLandlock() bool {
	_, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return errno == 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// program is one with directories and no name.
func program(t *testing.T) Program {
	t.Helper()
	dir := t.TempDir()
	p := Program{Files: filepath.Join(dir, "files"), Scratch: filepath.Join(dir, "scratch"), Limits: plenty}
	must(t, os.Mkdir(p.Files, 0o700))
	must(t, os.MkdirAll(filepath.Join(p.Scratch, "in"), 0o700))
	must(t, os.Chown(p.Scratch, Nobody, Nobody))
	return p
}

// sh is a program that is a script.
func sh(t *testing.T, script string) Program {
	p := program(t)
	p.Name, p.Args = "sh", []string{"-c", script}
	return p
}

// reachable is a copy of this program that no one may run.
func reachable(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	program, err := os.ReadFile(self)
	must(t, err)
	dir, err := os.MkdirTemp("/var/tmp", "confine-") // /tmp is another for it
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "program")
	must(t, os.WriteFile(path, program, 0o755))
	return path
}

// plenty is more than the tests' programs take.
var plenty = Limits{CPU: time.Hour, Memory: 1 << 40, FileBytes: 1 << 30, Files: 64}

func TestRun(t *testing.T) {
	self := reachable(t)
	p := program(t)
	other := filepath.Join(filepath.Dir(p.Files), "other")
	must(t, os.WriteFile(other, []byte("x"), 0o644))
	must(t, os.WriteFile(filepath.Join(p.Files, "secret"), []byte("x"), 0))
	must(t, os.Mkdir(filepath.Join(p.Files, "open"), 0o777))
	must(t, os.Chmod(filepath.Join(p.Files, "open"), 0o777))
	p.Name, p.Args, p.Capabilities = self, []string{"confined", other}, []uintptr{unix.CAP_DAC_READ_SEARCH}
	must(t, Run(t.Context(), p))
	if data, err := os.ReadFile(filepath.Join(p.Scratch, "made")); err != nil || string(data) != "x" {
		t.Errorf("it has written %q, %v", data, err)
	}
	// Nothing of it has come upon this process.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	must(t, err)
	must(t, unix.Close(fd))
	_, err = os.ReadFile(other)
	must(t, err)
	if _, err := os.Stat(filepath.Join(Scratch, "made")); err == nil {
		t.Error("what the program mounts is mounted for all")
	}
}

func TestBetweenPipes(t *testing.T) {
	self, dir := reachable(t), t.TempDir()
	other := filepath.Join(filepath.Dir(self), "other")
	must(t, os.WriteFile(other, []byte("x"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "in"), []byte("streamed"), 0o600))
	in, err := os.Open(filepath.Join(dir, "in"))
	must(t, err)
	defer in.Close()
	out, err := os.Create(filepath.Join(dir, "out"))
	must(t, err)
	defer out.Close()
	net, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	must(t, Run(t.Context(), Program{Name: self, Args: []string{"pipes", other, net}, Stdin: in, Stdout: out, Limits: plenty}))
	if got, err := os.ReadFile(out.Name()); err != nil || string(got) != "streamed" {
		t.Errorf("it wrote %q, %v", got, err)
	}
}

func TestEnds(t *testing.T) {
	if err := Run(t.Context(), Program{Name: "no-such-program"}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("not there: %v", err)
	}
	if err := Run(t.Context(), sh(t, "echo a reason; exit 3")); err == nil || !strings.Contains(err.Error(), "exit status 3: a reason") {
		t.Errorf("failed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, sh(t, "sleep 1000")); !errors.Is(err, context.Canceled) {
		t.Errorf("out of time: %v", err)
	}
	p := sh(t, "true")
	p.Files += "/not/there"
	if err := Run(t.Context(), p); !errors.Is(err, unix.ENOENT) {
		t.Errorf("files that are not there: %v", err)
	}
}

// A process that the program leaves behind holds its output open, and no one up.
func TestLeavesAProcess(t *testing.T) {
	p := program(t)
	p.Name, p.Args = reachable(t), []string{"leaves"}
	if err := Run(t.Context(), p); !errors.Is(err, exec.ErrWaitDelay) {
		t.Errorf("run: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(p.Scratch, "pid"))
	must(t, err)
	pid, err := strconv.Atoi(string(data))
	must(t, err)
	must(t, unix.Kill(pid, unix.SIGKILL))
}

func TestLimits(t *testing.T) {
	for what, change := range map[string]func(*Program){
		"files":  func(p *Program) { p.Limits.Files, p.Args[1] = 4, "exec 3</bin/sh 4</bin/sh 5</bin/sh" },
		"memory": func(p *Program) { p.Limits.Memory = 1 << 20 },
		"bytes": func(p *Program) {
			p.Limits.FileBytes, p.Args[1] = 512, "echo x >/tmp/f && head -c 2000 /bin/sh >/tmp/g"
		},
	} {
		p := sh(t, "true")
		change(&p)
		if err := Run(t.Context(), p); err == nil {
			t.Errorf("beyond the limit of %s: nothing happened", what)
		}
		p.Limits = plenty
		if err := Run(t.Context(), p); err != nil {
			t.Errorf("without the limit of %s: %v", what, err)
		}
	}
}
