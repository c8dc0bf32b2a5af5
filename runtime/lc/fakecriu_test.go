package lc_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	criu "github.com/checkpoint-restore/go-criu/v8/rpc"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// isCRIU says whether the test binary was executed as criu(8).
func isCRIU() bool { return filepath.Base(os.Args[0]) == "criu" }

// fakeCRIU answers as `criu swrk SOCKET` that knows its version and fails in all else, for which its log has the reason.
func fakeCRIU() int {
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

// What CRIU logs is in the error: its log is removed with what has failed.
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
	says(c.(runtime.Checkpointer).Checkpoint(t.Context(), runtime.CheckpointOptions{ImageOptions: images, LeaveRunning: true, StatusFD: -1}), "DUMP")
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
}
