package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/events"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/shim/client"
)

// TestHandlers: what holds for containers of the shim's own engine holds for those that OCI
// runtimes' commands have made: streams, logs and exit statuses survive every kill.
func TestHandlers(t *testing.T) {
	handlers = map[string]string{
		"runc": "oci:/usr/sbin/runc",
		"crun": "oci:" + testkit.Crun(t),
		"shim": "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2"),
	}
	for name := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for test, run := range map[string]func(*testing.T){
				"life": TestLife, "kill": TestKill, "delete-created": TestDeleteCreated, "exec": TestExec,
				"stats": TestStats, "oom": TestOOM, "update": TestUpdate,
				"attach": TestAttachStdin, "resize": TestResize, "reopen": TestReopenLog,
				"kill-shim-writing": TestKillShimWhileWriting, "exit-in-the-gap": TestExitInTheGap,
				"kill-keeper":      TestKillKeeper,
				"kill-shim-states": TestKillShimStates, "kill-shim-exec": TestKillShimDuringExec,
				"daemon-restart": TestDaemonRestart, "kill-all": TestKillAll, "leaks": TestNoDescriptorLeaks,
			} {
				// A shim's containers keep their stdin when ours and the keeper die.
				if name != "shim" || test != "kill-all" {
					t.Run(test, run)
				}
			}
		})
	}
}

func TestUnknownHandler(t *testing.T) {
	for h, want := range map[string]string{
		"vm:kata":         `handler "vm:kata": not supported`,
		"shim:runc":       `shim "runc" is neither an absolute path nor a name such as io.containerd.runc.v2`,
		"shim:io.no.v9":   `shim "io.no.v9": exec: "containerd-shim-no-v9": executable file not found`,
		"shim:/bin/echo":  `echo start: it printed no address`,
		"shim:/bin/false": `false start: exit status 1`,
		"oci:runc":        `OCI runtime "runc" is not an absolute path`,
		"oci:/nowhere/rc": "OCI runtime: stat /nowhere/rc: no such file or directory",
	} {
		r := newRig(t)
		req := r.request("true")
		req.Handler = h
		if _, err := r.c.Create(r.ctx(), req); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one with %q", h, err, want)
		}
		if _, err := r.c.Status(r.ctx(), pod, req.ID); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("%s: status of what was refused: %v", h, err)
		}
	}
}

// TestShimDies: containers of a containerd shim that is killed count as ended, no one knows how,
// and leave nothing; the pod's next container gets another shim.
func TestShimDies(t *testing.T) {
	r := newRig(t)
	handler := "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2")
	req := r.request("sleep 1000")
	req.Handler = handler
	done, err := r.c.Launch(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	pid := done.Pid
	shim := parent(t, pid)
	r.sendSignal(shim, unix.SIGKILL)
	if ev := r.exit(req.ID); ev.ExitCode != 255 || !ev.ExitedAt.IsZero() {
		t.Errorf("event %+v", ev)
	}
	r.waitGone(pid)
	if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
		t.Error(err)
	}
	next := r.request("exit 5")
	next.Handler = handler
	r.run(next)
	if ev := r.exit(next.ID); ev.ExitCode != 5 {
		t.Errorf("event %+v", ev)
	}
}

// TestShimIsShared: containers of one sandbox have one shim, which ends with the last of them.
func TestShimIsShared(t *testing.T) {
	r := newRig(t)
	var shims []int
	var ids []string
	for _, sandbox := range []string{"a", "a", "b"} {
		req := r.request("sleep 1000")
		req.Handler = "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2")
		spec := runtimetest.Spec(req.ID, "/bin/sleep", "1000")
		spec.Linux.CgroupsPath = cgroupParent + "/" + req.ID
		spec.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": sandbox}
		r.writeSpec(req.Bundle, spec)
		pid, err := r.c.Create(r.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		shims, ids = append(shims, parent(t, pid)), append(ids, req.ID)
	}
	if shims[0] != shims[1] || shims[0] == shims[2] {
		t.Errorf("shims %v, want one for the first two", shims)
	}
	for i, id := range ids {
		if err := r.c.Delete(r.ctx(), pod, id); err != nil {
			t.Error(err)
		}
		if i > 0 {
			r.waitGone(shims[i]) // it has ended; the keeper reaps it
		} else if err := unix.Kill(shims[i], 0); err != nil {
			t.Errorf("shim of two containers, after the deletion of one: %v", err)
		}
	}
}

// parent is a process's parent.
func parent(t *testing.T, pid int) (ppid int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(b[bytes.LastIndexByte(b, ')')+1:]), " %1s %d", new(string), &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}

// TestPublishedEvent: a shim that reports by executing our program is heard, too.
func TestPublishedEvent(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	req.Handler = "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2")
	r.run(req)
	publish := func(event []byte) error {
		cmd := exec.Command(binary, "--address", filepath.Join(r.dir, "node", "v2", "events"), "publish", "--topic", "/tasks/oom", "--namespace",
			"coracle")
		cmd.Stdin = bytes.NewReader(event)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	oom, err := anypb.New(&events.TaskOOM{ContainerID: req.ID})
	if err != nil {
		t.Fatal(err)
	}
	event, err := proto.Marshal(oom)
	if err != nil {
		t.Fatal(err)
	}
	if err := publish(event); err != nil {
		t.Fatal(err)
	}
	if err := publish([]byte("boat")); err == nil || !strings.Contains(err.Error(), "publish: read event") {
		t.Errorf("no event: %v", err)
	}
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL}); err != nil {
		t.Fatal(err)
	}
	if ev := r.exit(req.ID); !ev.OOMKilled || ev.ExitCode != 137 {
		t.Errorf("event %+v", ev)
	}
}
