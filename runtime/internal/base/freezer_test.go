package base

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestFailedPause: a pause that fails leaves the container as it was. One that had been paused
// before was thawed, although its caller believes that it is paused.
func TestFailedPause(t *testing.T) {
	if cgroups.IsCgroup2UnifiedMode() {
		testkit.Untested(t, "a pause that fails with cgroups of version 1")
		return
	}
	for _, before := range []cgroups.FreezerState{cgroups.Thawed, cgroups.Frozen} {
		t.Run(string(before), func(t *testing.T) {
			_, rec := sleeping(t)
			if err := rec.freeze(before); err != nil {
				t.Fatal(err)
			}
			pid := blockedInFUSE(t)
			own := rec.CgroupPaths["freezer"]
			if err := cgroups.WriteCgroupProc(own, pid); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := rec.freezePatiently(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("pause: %v, want %v", err, context.Canceled)
			}
			// Only a state without FREEZING can be read, and only what is not frozen can be killed.
			if err := cgroups.WriteCgroupProc(filepath.Dir(own), pid); err != nil {
				t.Error(err)
			}
			rec.is(t, before, 0)
		})
	}
}

// blockedInFUSE is a process that waits for a file system, and so cannot be frozen.
func blockedInFUSE(t *testing.T) (pid int) {
	t.Helper()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := func() {}
	t.Cleanup(func() {
		_ = unix.Close(fuse) // which ends the wait
		end()
	})
	dir := t.TempDir()
	if err := unix.Mount("blocked", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	request := make([]byte, 1<<20) // struct fuse_in_header: length, operation, number
	read := func() {
		t.Helper()
		if _, err := unix.Read(fuse, request); err != nil {
			t.Fatal(err)
		}
	}
	read()
	// FUSE_INIT is answered with struct fuse_out_header and fuse_init_out.
	le, answer := binary.LittleEndian, make([]byte, 16+64)
	le.PutUint32(answer, uint32(len(answer)))
	copy(answer[8:16], request[8:16])
	le.PutUint32(answer[16:], 7)
	le.PutUint32(answer[20:], 31)
	le.PutUint32(answer[36:], 4096) // bytes of a write
	if _, err := unix.Write(fuse, answer); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("stat", dir+"/file")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() { _ = cmd.Wait() }
	read() // the process waits for the answer from now on
	return cmd.Process.Pid
}
