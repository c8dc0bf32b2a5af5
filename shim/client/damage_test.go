package client_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/client"
)

// twoLines prints a line, and another one once /tmp/go exists.
const twoLines = "echo before; while ! test -e /tmp/go; do sleep 0.02; done; echo after; sleep 1000"

// records are the files of a container that a test damages.
type records struct{ record, wanted, engine, claim string }

func (r *rig) records(id string) records {
	c, e := filepath.Join(r.dir, "node", "c", id), filepath.Join(r.dir, "node", "engine", id)
	return records{
		filepath.Join(c, "container.json"), filepath.Join(c, "wanted.json"),
		filepath.Join(e, "record.json"), filepath.Join(e, "claim.json"),
	}
}

// cut leaves the first half of a file.
func cut(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, st.Size()/2)
}

// instead puts something else in the place of a file.
func instead(path string, what func(path string) error) error {
	return errors.Join(os.Remove(path), what(path))
}

// A shim cannot read what the previous one has written: the container keeps running, its log
// continues, and every operation on it works.
func TestDamagedRecords(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(f records) error
		keeper bool // the keeper is gone too
		noExec bool // data needed for further processes is lost
	}{
		"record cut":       {damage: func(f records) error { return cut(f.record) }},
		"record empty":     {damage: func(f records) error { return os.Truncate(f.record, 0) }},
		"record missing":   {damage: func(f records) error { return os.Remove(f.record) }},
		"record zeroed":    {damage: func(f records) error { return os.WriteFile(f.record, make([]byte, 500), 0o600) }},
		"record is a fifo": {damage: func(f records) error { return instead(f.record, func(p string) error { return unix.Mkfifo(p, 0o600) }) }},
		"record is a directory": {damage: func(f records) error {
			return instead(f.record, func(p string) error { return os.Mkdir(p, 0o700) })
		}},
		"record cut and wanted missing": {damage: func(f records) error { return errors.Join(cut(f.record), os.Remove(f.wanted)) }},
		"record and wanted missing":     {damage: func(f records) error { return errors.Join(os.Remove(f.record), os.Remove(f.wanted)) }},
		"record cut and keeper gone":    {damage: func(f records) error { return cut(f.record) }, keeper: true},
		"record empty and keeper gone":  {damage: func(f records) error { return os.Truncate(f.record, 0) }, keeper: true},
		"engine record cut":             {damage: func(f records) error { return cut(f.engine) }},
		"engine record missing":         {damage: func(f records) error { return os.Remove(f.engine) }},
		"engine record is a directory": {damage: func(f records) error {
			return instead(f.engine, func(p string) error { return os.Mkdir(p, 0o700) })
		}},
		"engine record cut and keeper gone": {damage: func(f records) error { return cut(f.engine) }, keeper: true},
		"both cut":                          {damage: func(f records) error { return errors.Join(cut(f.record), cut(f.engine)) }},
		"engine directory gone": {
			damage: func(f records) error { return os.RemoveAll(filepath.Dir(f.engine)) }, noExec: true,
		},
		"all cut": {damage: func(f records) error {
			return errors.Join(cut(f.record), os.Remove(f.wanted), cut(f.engine), cut(f.claim))
		}, noExec: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			req := r.request(twoLines)
			spec, err := runtime.LoadSpec(req.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			spec.Annotations = map[string]string{"io.kubernetes.cri.sandbox-id": pod}
			r.writeSpec(req.Bundle, spec)
			r.run(req)
			r.waitLog(req.LogPath, "before")
			before, err := r.c.Status(r.ctx(), pod, req.ID)
			if err != nil {
				t.Fatal(err)
			}
			r.withoutShim(test.keeper, func() {
				if err := test.damage(r.records(req.ID)); err != nil {
					t.Fatal(err)
				}
			})
			after, err := r.c.Status(r.ctx(), pod, req.ID)
			if err != nil || after != before {
				t.Fatalf("status was %+v, is %+v, %v\n%s", before, after, err, r.shimLog())
			}
			if pods, err := r.c.List(r.ctx()); err != nil || len(pods[pod]) != 1 {
				t.Errorf("list: %v, %v", pods, err)
			}
			if test.noExec {
				root := fmt.Sprintf("/proc/%d/root/tmp/go", after.Pid)
				if err := os.WriteFile(root, nil, 0o600); err != nil {
					t.Error(err)
				}
			} else if _, errs, code := r.exec(req.ID, "touch /tmp/go"); code != 0 {
				t.Errorf("exec: %d, %s", code, errs)
			}
			r.waitLog(req.LogPath, "after")
			if got := r.log(req.LogPath, "stdout"); got != "before\nafter\n" {
				t.Errorf("log %q", got)
			}
			// The rebuilt record is as good as the first one.
			r.waitNewShim(r.killShim())
			r.endAndDelete(req, after.Pid)
		})
	}
}

// endAndDelete kills a container and checks that nothing of it is left.
func (r *rig) endAndDelete(req client.LaunchRequest, pid int) {
	r.Helper()
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL, All: true}); err != nil {
		r.Fatal(err)
	}
	if ev := r.exit(req.ID); ev.Pid != pid || ev.ExitCode != 137 && ev.ExitCode != 255 {
		r.Errorf("event %+v", ev)
	}
	if err := r.c.Delete(r.ctx(), pod, req.ID); err != nil {
		r.Fatal(err)
	}
	f := r.records(req.ID)
	for _, dir := range []string{filepath.Dir(f.record), filepath.Dir(f.engine)} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			r.Errorf("%s is left: %v", dir, err)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		if left, _ := filepath.Glob(pattern + cgroupParent + "/" + req.ID); len(left) > 0 {
			r.Errorf("cgroups are left: %q", left)
		}
	}
}

// withoutShim calls a function while no shim runs and, if asked, no keeper.
func (r *rig) withoutShim(keeper bool, do func()) {
	r.Helper()
	k, shim := r.keeperPID(), r.shimPID()
	if keeper {
		r.disconnect() // otherwise the daemon would start others at once
		r.sendSignal(k, unix.SIGKILL)
		r.sendSignal(shim, unix.SIGKILL)
		r.waitDead(k)
		r.waitDead(shim)
		do()
		r.connect()
		return
	}
	r.sendSignal(k, unix.SIGSTOP)
	r.sendSignal(shim, unix.SIGKILL)
	r.waitDead(shim)
	do()
	r.sendSignal(k, unix.SIGCONT)
	r.waitNewShim(shim)
}

// The record of a newer program: the shim changes nothing, gives the reason, and exits with the
// status that prevents a restart.
func TestNewerRecords(t *testing.T) {
	for name, file := range map[string]func(f records) string{
		"container": func(f records) string { return f.record },
		"engine":    func(f records) string { return f.engine },
		"exec": func(f records) string {
			found, _ := filepath.Glob(filepath.Join(filepath.Dir(f.record), "exec-*.json"))
			return strings.Join(found, " ")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			creating, req := r.request("sleep 1000"), r.request(twoLines)
			if _, err := r.c.Create(r.ctx(), creating); err != nil {
				t.Fatal(err)
			}
			r.run(req)
			r.waitLog(req.LogPath, "before")
			exec1 := make(chan int32, 1)
			go func() {
				code, _ := r.c.Exec(r.ctx(), client.ExecRequest{
					PodID: pod, ID: req.ID,
					Process: process("/bin/sh", "-c", "while ! test -e /tmp/go; do sleep 0.02; done; exit 5"),
				})
				exec1 <- code
			}()
			r.waitFor("record of the exec", func() bool { return file(r.records(req.ID)) != "" })
			path := file(r.records(req.ID))
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			newer := []byte(strings.Replace(string(old), `"version":1`, `"version":2`, 1))
			r.withoutShim(false, func() {
				// Without the check, this record would be rolled back.
				rec := r.records(creating.ID).record
				b, err := os.ReadFile(rec)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(
					os.WriteFile(rec, []byte(strings.Replace(string(b), `"created"`, `"creating"`, 1)), 0o600),
					os.WriteFile(path, newer, 0o600)); err != nil {
					t.Fatal(err)
				}
				out, err := exec.Command(binary, "serve", "-state", filepath.Join(r.dir, "node"), "-keeper", r.dir).CombinedOutput()
				var ended *exec.ExitError
				if !errors.As(err, &ended) || ended.ExitCode() != 78 || !strings.Contains(string(out), path) ||
					!strings.Contains(string(out), "version 2") {
					t.Errorf("shim that meets a newer record: %v, %s", err, out)
				}
				if now, err := os.ReadFile(path); err != nil || string(now) != string(newer) {
					t.Errorf("the record was changed: %s, %v", now, err)
				}
				if _, err := os.Stat(rec); err != nil {
					t.Errorf("what was being created was rolled back: %v", err)
				}
				if err := errors.Join(os.WriteFile(path, old, 0o600), os.WriteFile(rec, b, 0o600)); err != nil {
					t.Fatal(err)
				}
			})
			if _, errs, code := r.exec(req.ID, "touch /tmp/go"); code != 0 {
				t.Errorf("exec: %d, %s", code, errs)
			}
			r.waitLog(req.LogPath, "after")
			<-exec1
		})
	}
}

// The container's process is unknown: the container is listed, left alone, and can still be ended.
func TestUnmanagedContainer(t *testing.T) {
	r := newRig(t)
	req := r.request("sleep 1000")
	r.run(req)
	st, err := r.c.Status(r.ctx(), pod, req.ID)
	if err != nil {
		t.Fatal(err)
	}
	f := r.records(req.ID)
	r.withoutShim(true, func() {
		if err := errors.Join(os.Truncate(f.record, 0), os.Truncate(f.engine, 0)); err != nil {
			t.Fatal(err)
		}
	})
	if pods, err := r.c.List(r.ctx()); err != nil || len(pods[pod]) != 1 {
		t.Errorf("list: %v, %v", pods, err)
	}
	if _, err := r.c.Status(r.ctx(), pod, req.ID); err == nil || errors.Is(err, client.ErrNotFound) ||
		!strings.Contains(err.Error(), "unmanaged") {
		t.Errorf("status: %v", err)
	}
	if all, err := r.c.Unmanaged(r.ctx()); err != nil || len(all) != 1 || all[0].ID != req.ID || all[0].PodID != pod ||
		!strings.Contains(all[0].Reason, "damaged") {
		t.Errorf("unmanaged: %+v, %v", all, err)
	}
	if _, err := r.c.Create(r.ctx(), req); !errors.Is(err, client.ErrExists) {
		t.Errorf("create: %v", err)
	}
	if err := unix.Kill(st.Pid, 0); err != nil {
		t.Errorf("the container does not run: %v", err)
	}
	if err := r.c.Delete(r.ctx(), pod, req.ID); !errors.Is(err, client.ErrRunning) {
		t.Errorf("delete while it runs: %v", err)
	}
	if err := r.c.Kill(r.ctx(), client.KillRequest{PodID: pod, ID: req.ID, Signal: unix.SIGKILL}); err != nil {
		t.Error(err)
	}
	r.waitDead(st.Pid)
	r.waitFor("deletion", func() bool { return r.c.Delete(r.ctx(), pod, req.ID) == nil })
	if pods, err := r.c.List(r.ctx()); err != nil || len(pods[pod]) != 0 {
		t.Errorf("list: %v, %v", pods, err)
	}
}
