//go:build faults

package fault

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
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

func TestFileArmsARunningProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", path)
	if err := Point("f").At(t.Context()); err != nil {
		t.Fatalf("before: %v", err)
	}
	if err := os.WriteFile(path, []byte("f=error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Point("f").At(t.Context()); !errors.Is(err, ErrInjected) {
		t.Fatalf("after: got %v, want ErrInjected", err)
	}
}

func TestKill(t *testing.T) {
	if os.Getenv("FAULT_TEST_CHILD") != "" {
		Point("k").At(context.Background())
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "FAULT_TEST_CHILD=1", "CORACLE_FAULTS=k=kill")
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("child ended with %v, want SIGKILL", err)
	}
}
