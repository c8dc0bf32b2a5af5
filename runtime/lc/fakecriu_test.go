package lc_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	criu "github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// isCRIU says whether the test binary was executed as criu(8).
func isCRIU() bool { return filepath.Base(os.Args[0]) == "criu" }

// fakeCRIU answers as `criu swrk SOCKET` that knows its version and fails in all else, for which
// its log has the reason. A restore that fails has already made a process, for the program that
// executed it.
func fakeCRIU() int {
	if len(os.Args) == 1 {
		return 0 // the process of a restore
	}
	socket, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return 1
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(socket, buf)
		if err != nil || n == 0 {
			return 0
		}
		var req criu.CriuReq
		if err := req.UnmarshalVT(buf[:n]); err != nil {
			return 1
		}
		res := criu.CriuResp{Type: req.Type, Success: new(true)}
		switch req.GetType() {
		case criu.CriuReqType_VERSION:
			res.Version = &criu.CriuVersion{MajorNumber: new(int32(4)), MinorNumber: new(int32(0))}
		default:
			*res.Success = false
			// Descriptors are the client's.
			dir := fmt.Sprintf("/proc/%d/fd/%d", os.Getppid(), req.GetOpts().GetWorkDirFd())
			text := fmt.Sprintf("(00.000001) Version: 4.0\n(00.000002) Error (criu/fake.c:1): cannot %s\n", req.GetType())
			if req.GetType() == criu.CriuReqType_RESTORE && inUnifiedCgroup() {
				made := exec.Command("criu")
				made.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_PARENT, Setsid: true} // as CRIU's are
				if err := made.Start(); err != nil {
					return 1
				}
			}
			if err := os.WriteFile(filepath.Join(dir, req.GetOpts().GetLogFile()), []byte(text), 0o600); err != nil {
				return 1
			}
		}
		b, err := res.MarshalVT()
		if err != nil {
			return 1
		}
		if _, err := unix.Write(socket, b); err != nil {
			return 1
		}
	}
}

// inUnifiedCgroup says whether this process is in a cgroup of the unified hierarchy, without which
// its orphans are not found.
func inUnifiedCgroup() bool {
	text, err := os.ReadFile("/proc/self/cgroup")
	return err == nil && strings.Contains("\n"+string(text), "\n0::/") && !strings.Contains("\n"+string(text), "\n0::/\n")
}

// What CRIU logs is in the error: its log is removed with what has failed. So are the processes
// that it has made.
func TestErrorsOfCRIU(t *testing.T) {
	adoptOrphans(t)
	bin := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(bin, "criu")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	state, images := filepath.Join(t.TempDir(), "state"), runtime.ImageOptions{ImageDir: t.TempDir(), WorkDir: t.TempDir()}
	e := newEngine(t, state)
	id := fmt.Sprintf("criu-%d", os.Getpid())
	spec, create := runtimetest.Spec(id, "/bin/sleep", "1000"), runtime.CreateOptions{Bundle: runtimetest.Bundle(t)}
	says := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "Error (criu/fake.c:1): cannot "+want) {
			t.Errorf("error is %v, want one that says that it cannot %s", err, want)
		}
	}

	c, err := e.Create(t.Context(), id, spec, create)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(c.(runtime.Checkpointer).Checkpoint(t.Context(), runtime.CheckpointOptions{ImageOptions: images, LeaveRunning: true, StatusFD: -1}),
		"DUMP")
	if err := c.Signal(t.Context(), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	reap(t, pid)
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}

	_, err = e.(runtime.Restorer).Restore(t.Context(), id, spec, create, runtime.RestoreOptions{ImageOptions: images})
	says(err, "RESTORE")
	if _, err := e.Load(t.Context(), id); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("left of it: %v", err)
	}
	nothingLeft(t, state, id)
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}
