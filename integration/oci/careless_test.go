//go:build cgo

package oci

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// What a careless runtime does, against which each attack has to succeed.

// sendVictim has a process of the host join the attacker's pid namespace without any precaution,
// and returns what ends it. Its program is a copy, which an attacker may overwrite.
func (r *rig) sendVictim(a *attack) (program string, end func()) {
	r.Helper()
	data, err := attacker()
	r.must(err)
	program = filepath.Join(r.TempDir(), "victim")
	r.must(os.WriteFile(program, data, 0o755))
	cmd := exec.Command(program, "victim")
	in, err := cmd.StdinPipe()
	r.must(err)
	out, err := cmd.StdoutPipe()
	r.must(err)
	cmd.Stderr = os.Stderr
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", a.c.Pid()))
	r.must(err)
	defer ns.Close()
	started := make(chan error)
	go func() {
		goruntime.LockOSThread() // the thread ends with its namespace
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
			started <- err
			return
		}
		started <- cmd.Start()
	}()
	r.must(<-started)
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil || string(ready) != "ready\n" {
		r.Fatalf("the victim says %q: %v", ready, err)
	}
	return program, func() {
		r.Helper()
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		r.must(cmd.Wait())
	}
}

// The attacker of processes gets at all of one that takes no precaution: what other tests find
// untouched is out of its reach, and not merely overlooked.
func TestAttackerWinsAgainstCarelessProcess(t *testing.T) {
	r := newRig(t)
	a := r.attack(spec("/attacker", "processes"))
	program, end := r.sendVictim(a)
	for _, hit := range []string{"memory", "secret", "root ", "program of the host", "descriptor", "held victim"} {
		a.await("HIT " + hit)
	}
	end()
	a.await("HIT overwritten")
	a.stop()
	before, err := attacker()
	r.must(err)
	after, err := os.ReadFile(program)
	r.must(err)
	if string(before) == string(after) {
		t.Error("the victim's program is unharmed")
	}
}

// An attacker that is given descriptors finds them.
func TestAttackerFindsDescriptors(t *testing.T) {
	r := newRig(t)
	dir, err := os.Open("/")
	r.must(err)
	defer dir.Close()
	file, err := os.Open("/proc/self/status")
	r.must(err)
	defer file.Close()
	s := spec("/attacker", "descriptors")
	rd, wr, err := os.Pipe()
	r.must(err)
	defer rd.Close()
	c, pid, err := r.create(s, runtime.Stdio{Stdout: wr, Stderr: wr, Files: []*os.File{dir, file}})
	wr.Close()
	r.must(err)
	r.must(c.Start(t.Context()))
	out, err := io.ReadAll(rd)
	r.must(err)
	r.end(c, pid)
	if hits := r.successes(string(out)); len(hits) != 2 {
		t.Errorf("the attacker finds %q, want the directory and the file", hits)
	}
}

// An attacker with all that the release agent's attack needs wins: privileges, and the cgroups
// writable.
func TestAttackerWinsAgainstWritableCgroups(t *testing.T) {
	r := newRig(t)
	s := spec("/attacker", "release-agent")
	c := s.Process.Capabilities
	c.Bounding = append(c.Bounding, "CAP_SYS_ADMIN")
	c.Permitted, c.Effective = c.Bounding, c.Bounding
	// In its own cgroup namespace the root's release_agent is out of its sight: nothing is harmed.
	s.Mounts = append(s.Mounts, specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"rw", "nosuid", "noexec", "nodev"},
	})
	won := map[string]bool{}
	for _, hit := range r.attackOnce(s) {
		var what string
		_, err := fmt.Sscanf(hit, "HIT %s", &what)
		r.must(err)
		won[what] = true
	}
	want := []string{"remounted"}
	if _, err := os.Stat("/sys/fs/cgroup/pids/notify_on_release"); err == nil { // version 1
		want = append(want, "wrote", "mounted")
	}
	for _, what := range want {
		if !won[what] {
			t.Errorf("the attacker has not %s: %v", what, won)
		}
	}
}

// leads says whether a path of the root file system leads to target if its links are followed as
// on the host, without its root.
func leads(path, target string) bool {
	a, err := os.Stat(path)
	if err != nil {
		return false
	}
	b, err := os.Stat(target)
	return err == nil && os.SameFile(a, b)
}
