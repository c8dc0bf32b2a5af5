//go:build faults

package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestErrorAndCount(t *testing.T) {
	t.Setenv("CORACLE_FAULTS", "a=error, b=2*error")
	if err := Point("a").At(t.Context()); !errors.Is(err, ErrInjected) {
		t.Errorf("a: got %v, want ErrInjected", err)
	}
	for i, want := range []bool{false, true, false} {
		if err := Point("b").At(t.Context()); (err != nil) != want {
			t.Errorf("b, time %d: got %v", i+1, err)
		}
	}
	if err := Point("unarmed").At(t.Context()); err != nil {
		t.Errorf("unarmed: got %v", err)
	}
}

func TestHangEndsWithTheContext(t *testing.T) {
	t.Setenv("CORACLE_FAULTS", "h=hang")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Point("h").At(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want Canceled", err)
	}
}

// armFile arms the points of this process by a file.
func armFile(t *testing.T, list string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", path)
	if list != "" {
		if err := os.WriteFile(path, []byte(list+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestFileArmsARunningProcess(t *testing.T) {
	path := armFile(t, "")
	if err := Point("f").At(t.Context()); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := os.WriteFile(path, []byte("f=error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Point("f").At(t.Context()); !errors.Is(err, ErrInjected) {
			t.Fatalf("after: got %v, want ErrInjected", err)
		}
	}
}

func TestOnce(t *testing.T) {
	path := armFile(t, "o=once*error")
	if err := Point("other").At(t.Context()); err != nil {
		t.Errorf("another point: %v", err)
	}
	if err := Point("o").At(t.Context()); !errors.Is(err, ErrInjected) {
		t.Errorf("the first time: %v, want ErrInjected", err)
	}
	if _, err := os.Stat(path + TakenSuffix); err != nil {
		t.Error(err)
	}
	if err := Point("o").At(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestHangEndsWithTheFile(t *testing.T) {
	for _, how := range []string{"hang", "once*hang"} {
		t.Run(how, func(t *testing.T) {
			path := armFile(t, "h="+how)
			reached := filepath.Join(t.TempDir(), "reached")
			if err := unix.Mkfifo(reached, 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("CORACLE_FAULTS_REACHED", reached)
			ended := make(chan error, 1)
			go func() { ended <- Point("h").At(t.Context()) }()
			if b, err := os.ReadFile(reached); err != nil || string(b) != "h hang\n" {
				t.Fatalf("reached: %q, %v", b, err)
			}
			select {
			case err := <-ended:
				t.Fatalf("it does not hang: %v", err)
			default:
			}
			if how == "hang" {
				path = strings.TrimSuffix(path, TakenSuffix)
			} else {
				path += TakenSuffix
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "reached")
	t.Setenv("CORACLE_FAULTS_REACHED", path)
	t.Setenv("CORACLE_FAULTS", "y=error")
	_, _ = Point("x").At(t.Context()), Point("y").At(t.Context())
	if b, err := os.ReadFile(path); err != nil || string(b) != "x\ny error\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// child runs a test of this name in its own process, in which inChild is true.
func child(t *testing.T, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(append(os.Environ(), "FAULT_TEST_CHILD=1"), env...)
	return cmd
}

func inChild() bool { return os.Getenv("FAULT_TEST_CHILD") != "" }

func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

func TestKill(t *testing.T) {
	if inChild() {
		Point("k").At(context.Background())
		return
	}
	if err := child(t, "CORACLE_FAULTS=k=kill").Run(); !killed(err) {
		t.Fatalf("child ended with %v, want SIGKILL", err)
	}
}

func TestKillOthers(t *testing.T) {
	if inChild() {
		self, other := os.Getpid(), os.Getenv("OTHER")
		os.Setenv("CORACLE_FAULTS", fmt.Sprintf("k=kill:%s,both=kill:%d+%s", other, self, other))
		Point(os.Getenv("POINT")).At(context.Background())
		return
	}
	for point, self := range map[string]bool{"k": false, "both": true} {
		t.Run(point, func(t *testing.T) {
			other := exec.Command("sleep", "1000")
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestKillOthers$")
			cmd.Env = append(os.Environ(), "FAULT_TEST_CHILD=1", "POINT="+point, fmt.Sprintf("OTHER=%d", other.Process.Pid))
			if err := cmd.Run(); killed(err) != self || !self && err != nil {
				t.Errorf("it ended with %v", err)
			}
			if err := other.Wait(); !killed(err) {
				t.Errorf("the other ended with %v", err)
			}
		})
	}
}

func TestFill(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("CORACLE_FAULTS", "f=fill:"+dir)
	if err := Point("f").At(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("written: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, FillName)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}

// A fault that stays is done only after it has happened: undone earlier, it would happen later.
func TestFaultThatStaysIsDone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", path)
	for _, test := range []struct{ action, left string }{{"fill:", DoneSuffix}, {"error", TakenSuffix}} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("f=once*"+strings.Replace(test.action, ":", ":"+dir, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = Point("f").At(t.Context())
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(path + "*")
		if err != nil || !slices.Equal(left, []string{path + test.left}) {
			t.Errorf("%s: %v, %v", test.action, left, err)
		}
		if err := os.Remove(path + test.left); err != nil {
			t.Fatal(err)
		}
	}
}

func TestExhaust(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CORACLE_FAULTS", "e=emfile")
	err := Point("e").At(t.Context())
	_, oerr := os.Open("/dev/null")
	if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); rerr != nil {
		t.Fatal(rerr)
	}
	if err != nil || !errors.Is(oerr, unix.EMFILE) {
		t.Errorf("at the point: %v; then open: %v", err, oerr)
	}
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
