package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Regression: users who may not look into the root directory were told to run 'coracle up' first.
func TestKubeconfigOfRoot(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := place{root: filepath.Join(t.TempDir(), "root"), state: t.TempDir()}
	if err := os.Mkdir(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	ask := func() string {
		cmd := kubeconfigCommand(&p)
		cmd.SetArgs(nil)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		return cmd.Execute().Error()
	}
	if got := ask(); !strings.Contains(got, "run 'coracle up") {
		t.Errorf("before up: %s", got)
	}
	if err := syscall.Setfsuid(65534); err != nil { // of this thread: it loses root's way into directories, too
		t.Fatal(err)
	}
	defer syscall.Setfsuid(0)
	if got := ask(); !strings.Contains(got, "use sudo") {
		t.Errorf("as another user: %s", got)
	}
}
