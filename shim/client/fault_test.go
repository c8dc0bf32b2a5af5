package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/sock"
)

// A shim that kills itself at a step of Create or Delete: the next one rolls the
// creation back, so that it can be repeated, and the deletion can be, too.
func TestKillAtEachStep(t *testing.T) {
	faulty := testkit.Bin(t, "faults", testkit.ShimExe)
	faults := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", faults)
	arm := func(t *testing.T, point string) {
		t.Helper()
		if err := os.WriteFile(faults, []byte(point), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer func(old string) { binary = old }(binary)
	binary = faulty

	for _, point := range []string{
		"shim.create.recorded", "shim.create.launched", "runtime.oci.create", "runtime.oci.created",
		"runtime.shim.start", "runtime.shim.started", "runtime.shim.created",
	} {
		by := ""
		if strings.HasPrefix(point, "runtime.oci.") {
			by = "oci:/usr/sbin/runc"
		}
		if strings.HasPrefix(point, "runtime.shim.") {
			by = "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2")
		}
		for _, action := range []string{"kill", "error"} {
			t.Run(point+"/"+action, func(t *testing.T) {
				arm(t, "")
				r := newRig(t)
				req := r.request("echo done")
				req.Handler = by
				arm(t, point+"="+action)
				_, err := r.c.Launch(r.ctx(), req)
				if err == nil || (action == "kill" && !errors.Is(err, client.ErrUnavailable)) {
					t.Errorf("create: %v", err)
				}
				arm(t, "")
				if pods, err := r.c.List(r.ctx()); err != nil || len(pods) != 0 {
					t.Errorf("list: %v, %v", pods, err)
				}
				left, _ := filepath.Glob(filepath.Join(r.dir, "node", "*", req.ID))
				if len(left) != 0 {
					t.Errorf("left: %v", left)
				}
				r.run(req)
				r.exit(req.ID)
				if out := r.log(req.LogPath, "stdout"); out != "done\n" {
					t.Errorf("log %q", out)
				}
			})
		}
	}
	// A kill that is cut short leaves nothing frozen: what it has not reached goes on, and can be
	// killed.
	for _, point := range testkit.FaultPointsOf(t, testkit.ShimExe, "runtime.kill.") {
		for _, action := range []string{"kill", "error"} {
			t.Run(point+"/"+action, func(t *testing.T) {
				arm(t, "")
				r := newRig(t)
				req := r.request("sleep 1000 & sleep 1000")
				r.run(req)
				shim := r.shimPID()
				// Where the kernel can kill a cgroup, nothing is frozen and no such step is
				// reached.
				_, err := os.Stat(filepath.Join("/sys/fs/cgroup", cgroupParent, req.ID, "cgroup.kill"))
				steps := err != nil
				arm(t, point+"="+action)
				killed, ctx := make(chan error, 1), r.ctx()
				go func() {
					killed <- r.c.Kill(ctx, client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL, All: true})
				}()
				if steps && action == "kill" {
					r.waitNewShim(shim) // to which the client turns
				}
				failed := steps && action == "error"
				if failed {
					if err := <-killed; err == nil {
						t.Error("no error")
					}
					killed <- nil
				}
				arm(t, "")
				if err := <-killed; err != nil && !errors.Is(err, client.ErrNotRunning) { // it died of the first one
					t.Error(err)
				}
				if failed && point != "runtime.kill.sent" {
					if out, _, _ := r.exec(req.ID, "echo goes on"); out != "goes on\n" {
						t.Errorf("exec: %q", out)
					}
					if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL, All: true}); err != nil {
						t.Error(err)
					}
				}
				if ev := r.exit(req.ID); ev.ExitCode != 137 {
					t.Errorf("event %+v", ev)
				}
				if left, _ := filepath.Glob(filepath.Join(r.dir, "node", "*", req.ID, "halt-*")); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			})
		}
	}
	// A rotation of a log that is cut short at each of its steps loses no line.
	for _, step := range []string{"pruned", "renamed", "opened"} {
		for _, action := range []string{"kill", "error"} {
			t.Run("shim.log."+step+"/"+action, func(t *testing.T) {
				const lines = 20_000
				arm(t, "")
				r := newRig(t)
				req := r.request("read go; " + count(lines))
				req.Stdin = true
				req.LogLimit = client.LogLimit{FileBytes: api.MinLogBytes, Files: 100}
				r.run(req)
				shim := r.shimPID()
				arm(t, "shim.log."+step+"=1*"+action)
				ctx, typed := r.ctx(), make(chan struct{})
				go func() {
					defer close(typed)
					_ = r.c.Attach(ctx, pod, req.ID, client.Streams{Stdin: strings.NewReader("go\n")}) // the shim may be killed
				}()
				if action == "kill" {
					r.waitNewShim(shim)
					arm(t, "")
				}
				r.exit(req.ID)
				<-typed
				got, want := r.whole(req.LogPath), numbered(lines, "\n")
				if got != want {
					t.Errorf("log: %s", firstDifference(got, want))
				}
				if action == "error" {
					return // the old file may have become larger
				}
				r.withinLimit(req)
			})
		}
	}
	t.Run("shim.delete.engine", func(t *testing.T) {
		r := newRig(t)
		req := r.request("exit 3")
		r.run(req)
		r.exit(req.ID)
		arm(t, "shim.delete.engine=error")
		if err := r.c.Delete(r.ctx(), pod, req.ID); err == nil {
			t.Error("delete succeeded")
		}
		arm(t, "")
		if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || st.ExitCode != 3 {
			t.Errorf("status %+v, %v", st, err)
		}
		r.waitNewShim(r.killShim()) // the engine has no such container any more
		if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
			t.Error(err)
		}
	})
	// The end of an init that was killed before it was started is not the end of the
	// container's program.
	t.Run("shim.delete.engine before the start", func(t *testing.T) {
		r := newRig(t)
		req := r.request("exit 3")
		if _, err := r.c.Create(r.ctx(), req); err != nil {
			t.Fatal(err)
		}
		arm(t, "shim.delete.engine=error")
		if err := r.c.Delete(r.ctx(), pod, req.ID); err == nil {
			t.Error("delete succeeded")
		}
		arm(t, "")
		if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || st.State != client.StateCreated {
			t.Errorf("status %+v, %v", st, err)
		}
		if err := r.c.StartContainer(r.ctx(), pod, req.ID); !errors.Is(err, client.ErrNotRunning) {
			t.Errorf("start: %v", err)
		}
		r.waitNewShim(r.killShim())
		if pods, err := r.c.List(r.ctx()); err != nil || len(pods) != 0 {
			t.Errorf("list: %v, %v", pods, err)
		}
		r.run(req)
		if ev := r.exit(req.ID); ev.ExitCode != 3 { // nor is its exit another one's
			t.Errorf("event %+v", ev)
		}
	})
	// What has ended is told at once, recorded or not.
	t.Run("shim.exec.started/ended", func(t *testing.T) {
		r := newRig(t)
		req := r.request("sleep 1000")
		r.run(req)
		arm(t, "shim.exec.started=hang")
		if out, _, code := r.exec(req.ID, "echo ended; exit 7"); out != "ended\n" || code != 7 {
			t.Errorf("exec: %q, %d", out, code)
		}
		arm(t, "")
		r.waitFor("end of the exec", func() bool {
			left, _ := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
			return len(left) == 0
		})
	})
	t.Run("shim.exec.started", func(t *testing.T) {
		r := newRig(t)
		req := r.request("sleep 1000")
		r.run(req)
		arm(t, "shim.exec.started=error")
		if _, err := r.c.Exec(r.ctx(), client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/sleep", "1000")}); err == nil {
			t.Error("exec succeeded")
		}
		arm(t, "")
		r.waitFor("end of the exec", func() bool {
			left, _ := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
			return len(left) == 0
		})
	})
	// A launch that is cut off when the container has been created does not run the program.
	for _, action := range []string{"kill", "error", "hang"} {
		t.Run("shim.launch.created/"+action, func(t *testing.T) {
			arm(t, "")
			r := newRig(t)
			req := r.request("echo done")
			arm(t, "shim.launch.created="+action)
			limit := patience
			if action == "hang" {
				limit = 2 * time.Second // how long it hangs
			}
			ctx, cancel := context.WithTimeout(r.ctx(), limit)
			defer cancel()
			if _, err := r.c.Launch(ctx, req); err == nil || action == "kill" && !errors.Is(err, client.ErrUnavailable) {
				t.Errorf("launch: %v", err)
			}
			if st, err := r.c.Status(r.ctx(), pod, req.ID); err != nil || st.State != client.StateCreated {
				t.Errorf("status %+v, %v", st, err)
			}
			must(t, r.c.Delete(r.ctx(), pod, req.ID))
			arm(t, "") // not before: the shim's deadline ends after the client's, and without the file the start goes on
			if out := r.log(req.LogPath, "stdout"); out != "" {
				t.Errorf("log %q", out)
			}
			r.run(req)
			r.exit(req.ID)
			if out := r.log(req.LogPath, "stdout"); out != "done\n" {
				t.Errorf("log %q", out)
			}
		})
	}
	// A shim without free descriptors cannot undo a creation until it has some again.
	t.Run("shim.create.launched/emfile", func(t *testing.T) {
		r := newRig(t)
		first, req := r.request("sleep 1000"), r.request("exit 3")
		r.run(first)
		err := r.withoutDescriptors(faults, "shim.create.launched", func(ctx context.Context) error {
			_, err := r.c.Launch(ctx, req)
			return err
		})
		if err == nil {
			t.Error("created without descriptors")
		}
		if left, _ := filepath.Glob(filepath.Join(r.dir, "node", "*", req.ID)); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		r.run(req)
		if ev := r.exit(req.ID); ev.ExitCode != 3 {
			t.Errorf("event %+v", ev)
		}
	})
	// An exec whose files the keeper does not hold would lose its output with the shim.
	t.Run("shim.exec.launched/emfile", func(t *testing.T) {
		r := newRig(t)
		req := r.request("sleep 1000")
		r.run(req)
		err := r.withoutDescriptors(faults, "shim.exec.launched", func(ctx context.Context) error {
			_, err := r.c.Exec(ctx, client.ExecRequest{PodID: pod, ID: req.ID, Process: process("/bin/sleep", "1000")})
			return err
		})
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("exec without descriptors: %v", err)
		}
		r.waitFor("end of the exec", func() bool {
			left, _ := filepath.Glob(filepath.Join(r.dir, "node", "c", "*", "exec-*"))
			return len(left) == 0
		})
	})
}

// containerd starts an exec with two calls. It is told that the second one has failed, and need not
// delete what has not started: the process ran on.
func TestExecThatIsNotRecordedIsKilled(t *testing.T) {
	faults := filepath.Join(t.TempDir(), "faults")
	t.Setenv("CORACLE_FAULTS_FILE", faults)
	defer func(old string) { binary = old }(binary)
	binary = testkit.Bin(t, "faults", testkit.ShimExe)
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	nc, err := sock.Dial(filepath.Join(r.dir, "node"), sock.Shim, "unix")
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(nc)
	defer c.Close()
	shim := task.NewTTRPCTaskClient(c)
	// Its program starts another one, which the kill of one process would leave.
	spec, err := json.Marshal(process("/bin/sh", "-c", "sleep 2011 & exec sleep 2012"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shim.Exec(r.ctx(), &task.ExecProcessRequest{ID: req.ID, ExecID: "x", Spec: &anypb.Any{Value: spec}}); err != nil {
		t.Fatal(err)
	}
	runs := func(line string) bool {
		return slices.ContainsFunc(testkit.Processes(), func(p testkit.Process) bool { return p.Line() == line })
	}
	must(t, os.WriteFile(faults, []byte("shim.exec.held=hang"), 0o600))
	started := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(r.ctx(), 5*time.Second) // how long the start hangs
		defer cancel()
		_, err := shim.Start(ctx, &task.StartRequest{ID: req.ID, ExecID: "x"})
		started <- err
	}()
	r.waitFor("both processes", func() bool { return runs("sleep 2011") && runs("sleep 2012") })
	if err := <-started; err == nil {
		t.Error("started")
	}
	if end, err := shim.Wait(r.ctx(), &task.WaitRequest{ID: req.ID, ExecID: "x"}); err != nil || end.ExitStatus != 137 {
		t.Errorf("end of the exec: %v, %v", end, err)
	}
	must(t, os.Remove(faults)) // not before: the shim's deadline ends after the client's, and without the file the start goes on
	r.waitFor("the end of what it has started", func() bool { return !runs("sleep 2011") })
	if _, err := shim.Delete(r.ctx(), &task.DeleteRequest{ID: req.ID, ExecID: "x"}); err != nil {
		t.Error(err)
	}
}

// withoutDescriptors calls f while the shim cannot open another descriptor from the fault point on,
// until it has failed for the first time.
func (r *rig) withoutDescriptors(faults, point string, f func(context.Context) error) error {
	r.Helper()
	shim := r.shimPID()
	var limit unix.Rlimit
	if err := unix.Prlimit(shim, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(faults, []byte(point+"=once*emfile"), 0o600); err != nil {
		r.Fatal(err)
	}
	done := make(chan error, 1)
	ctx := r.ctx()
	go func() { done <- f(ctx) }()
	r.waitFor("the lack of descriptors", func() bool {
		return os.Remove(faults+fault.DoneSuffix) == nil
	})
	r.waitFor("a failure", func() bool { return strings.Contains(r.shimLog(), "too many open files") })
	if err := unix.Prlimit(shim, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		r.Fatal(err)
	}
	return <-done
}
