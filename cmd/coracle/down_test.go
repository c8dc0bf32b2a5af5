package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Regression: a purge that could not remove all forgot the cluster's port, so that another could
// not either.
func TestPurgeCanBeRepeated(t *testing.T) {
	programs := t.TempDir()
	refuse := filepath.Join(programs, "refuse")
	script := "#!/bin/sh\n[ -e " + refuse +
		" ] && { echo no; exit 1; }\n[ \"$1 $2 $3\" = 'load-balancers remove --sink' ] && exec ip link del \"$4\"\n"
	for name, content := range map[string]string{"coracle-kube": script, "refuse": ""} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(filepath.Join(p.kubeRoot(), "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 7443, Boot: "this", PodLogs: filepath.Join(dir, "pods")})
	alone(t, func() {
		for _, args := range []string{"link set lo up", "link add coracle-lb7443 type veth peer name far"} {
			if said, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v: %s", args, err, said)
				return
			}
		}
		err := down(t.Context(), p, true, false, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "load-balancers remove") ||
			!strings.Contains(err.Error(), "another 'coracle down --root "+p.root) {
			t.Errorf("the first purge: %v", err)
		}
		if !announces(7443) {
			t.Error("the announcements are removed: nothing is tested")
		}
		if _, err := os.Stat(p.kubeRoot()); err == nil {
			t.Error("the data are left")
		}
		if o := remembered(p); o.Port != 7443 || o.Boot != "" {
			t.Errorf("remembered are %+v", o)
		}
		if err := os.Remove(refuse); err != nil {
			t.Error(err)
		}
		if err := down(t.Context(), p, true, false, io.Discard); err != nil {
			t.Errorf("the second purge: %v", err)
		}
		if announces(7443) {
			t.Error("the announcements are left")
		}
		if _, err := os.Stat(p.root); err == nil {
			t.Error("--root is left")
		}
	})
}

// down ends what up has started, also after a reboot, and nothing that others have started.
func TestWhoseCoracled(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name          string
		was           upOptions
		runs          bool
		down, purging bool
	}{
		{"never up", upOptions{}, false, false, false},
		{"somebody else's", upOptions{Coracled: false}, true, false, false},
		{"ours runs", upOptions{Coracled: true, Boot: boot}, true, true, true},
		{"ours died", upOptions{Coracled: true, Boot: boot}, false, true, true},
		{"after down", upOptions{Coracled: true}, false, false, true},
		{"after down, then somebody else's", upOptions{Coracled: true}, true, false, false},
		{"after a reboot", upOptions{Coracled: true, Boot: "before"}, false, false, true},
		{"after a reboot, then somebody else's", upOptions{Coracled: true, Boot: "before"}, true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			p := place{root: filepath.Join(dir, "root"), state: dir}
			if test.runs {
				lock, err := hold(p.runtime())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lock.Close() }()
			}
			for purge, want := range map[bool]bool{false: test.down, true: test.purging} {
				if got, err := test.was.ours(p, purge); err != nil || got != want {
					t.Errorf("purge %t: ours %t, %v, want %t", purge, got, err, want)
				}
			}
		})
	}
}

// Regression: what an up had started just before it was killed had no lock yet, so down left it.
func TestDownEndsWhatHasNoLockYet(t *testing.T) {
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	coracle := withDoubles(t)
	p, other := place{root: t.TempDir(), state: t.TempDir()}, place{root: t.TempDir(), state: t.TempDir()}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 7443, Coracled: true, Boot: boot, CgroupRoot: "/coracle-test-none"})
	start := func(change func(*unix.SysProcAttr), program string, args ...string) <-chan error {
		cmd := exec.Command(program, args...)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), asCoracled+"="+early)
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		change(cmd.SysProcAttr)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return ended
	}
	supervise := func(p place) []string { return []string{"supervise", "--root", p.root, "--state", p.state, "--", "x"} }
	both := func(change func(*unix.SysProcAttr), dir string, p place) []<-chan error {
		return []<-chan error{
			start(change, filepath.Join(dir, "coracle-early"), supervise(p)...),
			start(change, filepath.Join(dir, "coracled"), coracledArgs(p, upOptions{})...),
		}
	}
	asUpDoes := func(*unix.SysProcAttr) {}
	here, elsewhere := both(asUpDoes, filepath.Dir(coracle), p), both(asUpDoes, filepath.Dir(coracle), other)
	// Regression: a user or a pod with a process of these arguments kept down from its work.
	image := containerImage(t, coracle, p)
	elsewhere = append(elsewhere, both(func(a *unix.SysProcAttr) { a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534} }, image, p)...)
	elsewhere = append(elsewhere, both(func(a *unix.SysProcAttr) { a.Chroot = image }, "/", p)...)
	alone(t, func() {
		if said, err := exec.Command(coracle, "down", "--root", p.root, "--state", p.state).CombinedOutput(); err != nil {
			t.Errorf("down: %v: %s", err, said)
		}
	})
	for _, ended := range here {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("down has left a process")
		}
	}
	for _, ended := range elsewhere {
		select {
		case <-ended:
			t.Error("down has ended a process of another cluster, user or container")
		default:
		}
	}
}

// containerImage has the doubles, and a place of its own at the path of p. All users may read it.
func containerImage(t *testing.T, coracle string, p place) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "coracle-image-") // t.TempDir is below one of root only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	err = errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(dir, p.root), 0o755), os.Chmod(coracle, 0o755))
	for _, name := range []string{"coracle-early", "coracled"} {
		err = errors.Join(err, os.Link(coracle, filepath.Join(dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Regression: the times that leave printed began again in the middle.
func TestDownContinuesSteps(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.kubeRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	alone(t, func() {
		steps := &steps{out: &out, began: time.Now().Add(-time.Hour)}
		if err := downStepping(t.Context(), p, true, false, steps); err != nil {
			t.Error(err)
		}
	})
	if !strings.HasPrefix(out.String(), "360") {
		t.Errorf("an hour after the beginning: %s", out.String())
	}
}
