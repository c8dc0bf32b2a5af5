//go:build cgo

package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// A process that joins a container must show it nothing of the host (CVE-2016-9962,
// CVE-2019-5736), while processes are executed all the time. With CAP_SYS_PTRACE the container
// may look into a process between the clone and its execve, as it may afterwards; there is
// nothing in it but its own plan.
func TestProcessesThatJoin(t *testing.T) {
	for _, ptrace := range []bool{false, true} {
		t.Run(fmt.Sprintf("CAP_SYS_PTRACE=%v", ptrace), func(t *testing.T) {
			r := newRig(t)
			s := spec("/attacker", "processes")
			if ptrace {
				c := s.Process.Capabilities
				c.Bounding = append(c.Bounding, "CAP_SYS_PTRACE")
				c.Permitted, c.Effective = c.Bounding, c.Bounding
			}
			a := r.attack(s)
			attacked := a.c
			other := spec("/bin/sleep", "1000")
			another, otherPid, err := r.create(other, runtime.Stdio{})
			r.must(err)
			r.must(another.Start(context.Background()))
			p := *s.Process
			p.Args = []string{"/bin/true"}
			secret := *s.Process
			secret.Args, secret.Env = []string{"/bin/true"}, []string{"A=SECRET-OF-ANOTHER"}
			for range 300 {
				pid, err := attacked.Exec(context.Background(), &p, runtime.ExecOptions{})
				if err == nil {
					r.wait(pid)
				} else if !ptrace { // it may have spoilt its own container's process
					t.Fatal(err)
				}
				pid, err = another.Exec(context.Background(), &secret, runtime.ExecOptions{})
				r.must(err)
				if got := r.wait(pid); got != 0 {
					t.Fatalf("a process of another container ended with %d", got)
				}
			}
			r.end(another, otherPid)
			known := []string{}
			if ptrace {
				known = append(known, "memory")
			}
			if bad := a.stop(known...); len(bad) > 0 {
				t.Errorf("the attacker got at %v", bad)
			}
		})
	}
}

// The same while containers are made in a pid namespace that the attacker has, too.
func TestContainersThatShareAPidNamespace(t *testing.T) {
	r := newRig(t)
	s := spec("/attacker", "processes")
	a := r.attack(s)
	for range 40 {
		o := spec("/bin/true")
		o.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", a.c.Pid())
		_, err := r.run(o)
		r.must(err)
	}
	if bad := a.stop(); len(bad) > 0 {
		t.Errorf("the attacker got at %v", bad)
	}
}

// Before its init has left the starter's root a container must not be entered.
func TestExecBeforePivot(t *testing.T) {
	r := newRig(t)
	reached, goOn := filepath.Join(r.bundle, "reached"), filepath.Join(r.bundle, "go-on")
	r.must(unix.Mkfifo(reached, 0o600))
	r.must(unix.Mkfifo(goOn, 0o600))
	s := spec("/bin/true")
	s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
		Path: "/bin/sh",
		Args: []string{"sh", "-c", "echo > " + reached + "; read x < " + goOn},
	}}}
	failed := make(chan error, 1)
	go func() {
		c, pid, err := r.create(s, runtime.Stdio{})
		if err == nil {
			// Later the same call is allowed: it was refused for the moment and not for its form.
			var child int
			if child, err = c.Exec(context.Background(), s.Process, runtime.ExecOptions{InCreated: true}); err == nil && r.wait(child) != 0 {
				err = errors.New("the process executed in the created container failed")
			}
			r.end(c, pid)
		}
		failed <- err
	}()
	_, err := os.ReadFile(reached)
	r.must(err)
	c, err := r.engine.Load(context.Background(), id(s))
	r.must(err)
	for _, opts := range []runtime.ExecOptions{{}, {InCreated: true}, {IgnorePaused: true}} {
		if _, err := c.Exec(context.Background(), s.Process, opts); !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("exec: %v, want ErrNotRunning", err)
		}
	}
	r.must(os.WriteFile(goOn, []byte("\n"), 0o600))
	r.must(<-failed)
}

// CVE-2024-21626 and others: descriptors of the runtime's in the container.
func TestDescriptors(t *testing.T) {
	r := newRig(t)
	if hits := r.attackOnce(spec("/attacker", "descriptors")); len(hits) > 0 {
		t.Errorf("init has %q", hits)
	}
	s := spec("/bin/sleep", "1000")
	c, pid, err := r.create(s, runtime.Stdio{})
	r.must(err)
	r.must(c.Start(context.Background()))
	p := *s.Process
	p.Args = []string{"/attacker", "descriptors"}
	rd, wr, err := os.Pipe()
	r.must(err)
	defer rd.Close()
	child, err := c.Exec(context.Background(), &p, runtime.ExecOptions{Stdio: runtime.Stdio{Stdout: wr}})
	r.must(err)
	wr.Close()
	said, err := io.ReadAll(rd)
	r.must(err)
	if got := r.wait(child); got != 0 {
		t.Errorf("the attacker exits with %d", got)
	}
	if hits := r.successes(string(said)); len(hits) > 0 {
		t.Errorf("a further process has %q", hits)
	}
	r.end(c, pid)
}

// CVE-2019-5736: a container that executes /proc/self/exe gets a program of the runtime's into
// itself, and can write to it once it has ended.
func TestProcSelfExe(t *testing.T) {
	r := newRig(t)
	r.must(os.WriteFile(r.inRoot("bin/script"), []byte("#!/proc/self/exe\n"), 0o755))
	r.must(os.Symlink("/proc/self/exe", r.inRoot("bin/link")))
	own, err := os.Executable()
	r.must(err)
	before, err := os.ReadFile(own)
	r.must(err)
	a := r.attack(spec("/attacker", "processes"))
	for _, program := range []string{"/proc/self/exe", "/bin/script", "/bin/link"} {
		for range 20 {
			s := spec(program)
			s.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", a.c.Pid())
			if out, err := r.run(s); err == nil || out != "" {
				t.Fatalf("%s: %q, %v; want the starter without its socket, which fails", program, out, err)
			}
			p := *s.Process
			pid, err := a.c.Exec(context.Background(), &p, runtime.ExecOptions{})
			if err == nil {
				r.wait(pid)
			} else if program == "/bin/script" || !strings.Contains(err.Error(), "no such file") {
				t.Fatal(err) // of a process that joins, /proc/self leads nowhere in the container's proc
			}
		}
	}
	if bad := a.stop(); len(bad) > 0 {
		t.Errorf("the attacker got at %v", bad)
	}
	after, err := os.ReadFile(own)
	r.must(err)
	if string(before) != string(after) {
		t.Error("the runtime's program was overwritten")
	}
}

// swapped has an attacker exchange two names of the root file system while containers are made
// from it, and returns what those say. First it wins against who follows the first name to target.
func (r *rig) swapped(a, b, target string, times int, make func() *specs.Spec) (said []string, failed int) {
	r.Helper()
	s := spec("/attacker", "exchange", a, b)
	s.Mounts = s.Mounts[:1] // /dev and all else are the shared root's
	attack := r.attack(s)
	r.wins(a, func() bool { return leads(r.inRoot(a), target) })
	for range times {
		if out, err := r.run(make()); err != nil {
			failed++
		} else {
			said = append(said, out)
		}
	}
	attack.stop()
	return said, failed
}

// CVE-2025-31133: what masks a path is not what the container says is /dev/null.
func TestMasksAreNotTheContainers(t *testing.T) {
	r := newRig(t)
	r.must(unix.Mknod(r.inRoot("dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	r.must(os.Symlink("/proc/sys/kernel/core_pattern", r.inRoot("dev/evil")))
	r.must(os.WriteFile(r.inRoot("masked"), []byte("secret"), 0o600))
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	r.must(err)
	said, failed := r.swapped("/dev/null", "/dev/evil", "/proc/sys/kernel/core_pattern", 60, func() *specs.Spec {
		s := spec("/bin/stat", "-c", "%t:%T", "/masked", "/proc/keys")
		s.Mounts = s.Mounts[:1]
		s.Linux.MaskedPaths = []string{"/masked", "/proc/keys"}
		return s
	})
	for _, out := range said {
		if out != "1:3\n1:3" {
			t.Errorf("masked paths are %q", out)
		}
	}
	if len(said) == 0 {
		t.Errorf("all %d containers failed", failed)
	}
	if now, _ := os.ReadFile("/proc/sys/kernel/core_pattern"); string(now) != string(pattern) {
		t.Errorf("the host's core_pattern is now %s", now)
	}
}

// CVE-2025-52565: the terminal is not mounted on a file of proc through /dev/console.
func TestConsoleIsNotInProc(t *testing.T) {
	r := newRig(t)
	create := func() error {
		s := spec("/bin/true")
		s.Mounts = append(s.Mounts[:1:1], s.Mounts[2])
		s.Process.Terminal = true
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer func() { r.must(pair.Close()) }()
		c, pid, err := r.create(s, runtime.Stdio{Console: pair.EngineEnd()})
		if err == nil {
			r.end(c, pid)
		}
		return err
	}
	r.must(os.WriteFile(r.inRoot("dev/console"), nil, 0o600))
	r.must(create()) // a file is what the terminal belongs on
	r.must(os.Remove(r.inRoot("dev/console")))
	// A mount on the path covers the file of proc.
	const pattern = "/proc/sys/kernel/core_pattern"
	r.must(os.Symlink(pattern, r.inRoot("dev/console")))
	r.must(unix.Mount(os.DevNull, r.inRoot("dev/console"), "", unix.MS_BIND, ""))
	if !leads(pattern, os.DevNull) {
		t.Error("a careless mount does not cover core_pattern: this test proves nothing")
	}
	r.must(unix.Unmount(pattern, 0))
	for _, to := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/attr/exec",
		"../proc/sys/kernel/core_pattern",
	} {
		_ = os.Remove(r.inRoot("dev/console"))
		r.must(os.Symlink(to, r.inRoot("dev/console")))
		if err := create(); err == nil {
			t.Errorf("%s: create succeeded", to)
		} else if !strings.Contains(err.Error(), "/dev/console") && !strings.Contains(err.Error(), "make a terminal") {
			t.Errorf("%s: create fails for another reason: %v", to, err)
		}
	}
}

// CVE-2025-52881: what the runtime writes to proc, such as sysctls, does not go to files of the
// container's, nor to other files of proc.
func TestWritesToProcAreNotRedirected(t *testing.T) {
	r := newRig(t)
	fake := r.inRoot("proc/sys/net/ipv4")
	r.must(os.MkdirAll(fake, 0o755))
	r.must(os.Symlink("/proc/version", filepath.Join(fake, "ip_forward")))
	r.must(os.MkdirAll(r.inRoot("proc/self"), 0o755))
	r.must(os.WriteFile(r.inRoot("proc/self/oom_score_adj"), []byte("untouched"), 0o644))
	s := spec("/bin/cat", "/real/sys/net/ipv4/ip_forward", "/real/self/oom_score_adj")
	s.Mounts[0].Destination = "/real"
	s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil
	s.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
	score := 321
	s.Process.OOMScoreAdj = &score
	out, err := r.run(s)
	r.must(err)
	if out != "1\n321" {
		t.Errorf("got %q", out)
	}
	if data, _ := os.ReadFile(r.inRoot("proc/self/oom_score_adj")); string(data) != "untouched" {
		t.Errorf("written into the image: %q", data)
	}
	// A write by path goes into the image, or where its link leads.
	r.must(os.WriteFile(r.inRoot("proc/self/oom_score_adj"), []byte("321"), 0o644))
	if data, _ := os.ReadFile(r.inRoot("proc/self/oom_score_adj")); string(data) != "321" ||
		!leads(filepath.Join(fake, "ip_forward"), "/proc/version") {
		t.Error("a careless write is not redirected either: this test proves nothing")
	}
}

// CVE-2021-30465: a mount's target that another container exchanges for a link meanwhile.
func TestTargetsThatAreExchanged(t *testing.T) {
	r := newRig(t)
	outside := filepath.Join(t.TempDir(), "outside")
	r.must(os.Mkdir(outside, 0o755))
	volume := filepath.Join(t.TempDir(), "volume")
	r.must(os.MkdirAll(filepath.Join(volume, "dir/deep"), 0o755))
	r.must(os.Symlink("../../../../../../../.."+outside, filepath.Join(volume, "link")))
	r.must(os.WriteFile(r.inRoot("mark"), nil, 0o644))
	source := filepath.Join(t.TempDir(), "source")
	r.must(os.Mkdir(source, 0o755))
	shared := specs.Mount{Destination: "/vol", Source: volume, Type: "bind", Options: []string{"rbind"}}
	s := spec("/attacker", "exchange", "/vol/dir", "/vol/link")
	s.Mounts = append(s.Mounts, shared)
	attack := r.attack(s)
	r.wins("/vol/dir", func() bool { return leads(filepath.Join(volume, "dir"), outside) })
	before, err := os.ReadFile("/proc/self/mountinfo")
	r.must(err)
	made := 0
	for range 100 {
		v := spec("/bin/sh", "-c",
			"test -e /mark && echo root; while read a b c d at rest; do echo $at; done < /proc/self/mountinfo | grep -v -e ^/proc -e ^/dev -e "+
				"^/sys -e ^/vol -e ^/$ -e '^"+outside+"'")
		v.Mounts = append(v.Mounts, shared,
			specs.Mount{Destination: "/vol/dir/deep/new", Source: source, Type: "bind", Options: []string{"rbind"}},
			specs.Mount{Destination: "/vol/dir/tmp", Type: "tmpfs", Source: "tmpfs"})
		out, err := r.run(v)
		if err != nil && out == "" { // the target has vanished
			continue
		}
		made++
		if out != "root" {
			t.Fatalf("a container says %q", out)
		}
	}
	attack.stop()
	after, err := os.ReadFile("/proc/self/mountinfo")
	r.must(err)
	if string(before) != string(after) {
		t.Error("the host's mounts have changed")
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("made on the host: %v", entries)
	}
	if made == 0 {
		t.Error("none of 100 containers was made")
	}
}

// A link of the image with ".." leads nowhere but into the image, while mounts are made.
func TestDotDotInLinks(t *testing.T) {
	r := newRig(t)
	r.must(os.Symlink("../../../null", r.inRoot("null")))
	r.must(os.Symlink("../../../mask", r.inRoot("mask")))
	r.must(os.Symlink("../../../root", r.inRoot("starter")))
	note := filepath.Join(r.bundle, "note")
	r.must(os.WriteFile(note, []byte("evil\n"), 0o644))
	r.must(os.WriteFile(r.inRoot("secret"), []byte("secret\n"), 0o644))
	s := spec("/bin/sh", "-c", "cat /secret; ls /")
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/null", Source: note, Type: "bind", Options: []string{"bind"}})
	s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/secret")
	// Without a root these links leave the bundle.
	for _, name := range []string{"null", "mask", "starter"} {
		to, err := os.Readlink(r.inRoot(name))
		r.must(err)
		if strings.HasPrefix(filepath.Join(filepath.Dir(r.inRoot(name)), to), r.bundle) {
			t.Errorf("%s leads to %s, within the bundle: this test proves nothing", name, to)
		}
	}
	// The target is missing: a link's is made in the root, or the container is refused.
	if out, err := r.run(s); err == nil || !strings.Contains(err.Error(), "bind "+note+" on /null") {
		t.Errorf("got %q, %v; want that /null is refused", out, err)
	}
	r.must(os.WriteFile(r.inRoot("image-null"), nil, 0o600))
	r.must(os.Remove(r.inRoot("null")))
	r.must(os.Symlink("../../../image-null", r.inRoot("null")))
	s = spec("/bin/cat", "/image-null", "/dev/null", "/secret")
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/null", Source: note, Type: "bind", Options: []string{"bind"}})
	s.Linux.MaskedPaths = append(s.Linux.MaskedPaths, "/secret")
	out, err := r.run(s)
	r.must(err)
	if out != "evil" {
		t.Errorf("got %q, want the note in the image's file, and neither in /dev/null nor the secret", out)
	}
}

// CVE-2022-0492, CVE-2023-25809: a container must not make the kernel execute a program of its
// own on the host, whether it has a cgroup namespace or not.
func TestReleaseAgent(t *testing.T) {
	for _, namespaced := range []bool{true, false} {
		r := newRig(t)
		s := spec("/attacker", "release-agent")
		if !namespaced {
			s.Linux.Namespaces = s.Linux.Namespaces[:5]
		}
		s.Mounts = append(s.Mounts, specs.Mount{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"ro", "nosuid", "noexec", "nodev"},
		})
		if hits := r.attackOnce(s); len(hits) > 0 {
			t.Errorf("namespaced %v: %q", namespaced, hits)
		}
	}
}
