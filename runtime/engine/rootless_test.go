package engine_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

const (
	someUser = 4711   // who has no rights
	subIDs   = 300000 // what /etc/subuid gives that user, in these tests
)

// asUser is a process of the user's.
func asUser() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: someUser, Gid: someUser}}
}

// rootlessOrder is a container of the user's, who owns its bundle and state.
func rootlessOrder(t *testing.T, script string) order {
	t.Helper()
	dir, id := t.TempDir(), fmt.Sprintf("rootless-%d", os.Getpid())
	o := order{
		State: filepath.Join(dir, "state"), Bundle: filepath.Join(dir, "bundle"), ID: id,
		Spec: runtimetest.Spec(id, "/bin/sh", "-c", script),
	}
	if err := runtimetest.MakeRootfs(filepath.Join(o.Bundle, "rootfs")); err != nil {
		t.Fatal(err)
	}
	giveAway(t, dir)
	l := o.Spec.Linux
	l.CgroupsPath, l.Resources = "", nil
	l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	own := []specs.LinuxIDMapping{{HostID: someUser, Size: 1}}
	l.UIDMappings, l.GIDMappings = own, own
	for i, m := range o.Spec.Mounts {
		if m.Type == "devpts" { // its group is not mapped
			o.Spec.Mounts[i].Options = m.Options[:len(m.Options)-1]
		}
	}
	return o
}

// giveAway makes a directory the user's, who must be able to get there.
func giveAway(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, someUser, someUser)
	})
	if err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// withSubIDs gives the user ids in /etc/subuid and /etc/subgid, in a mount namespace that ends
// with the test, and maps them.
func (o order) withSubIDs(t *testing.T) {
	t.Helper()
	goruntime.LockOSThread()
	file, users := filepath.Join(filepath.Dir(o.State), "subid"), filepath.Join(filepath.Dir(o.State), "passwd")
	for _, err := range []error{
		unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		os.WriteFile(file, fmt.Appendf(nil, "%d:%d:65536\n", someUser, subIDs), 0o644),
		os.WriteFile(users, fmt.Appendf(nil, "root:x:0:0::/root:/bin/sh\nsailor:x:%d:%d::/:/bin/sh\n", someUser, someUser), 0o644),
		unix.Mount(users, "/etc/passwd", "", unix.MS_BIND, ""),
		unix.Mount(file, "/etc/subuid", "", unix.MS_BIND, ""),
		unix.Mount(file, "/etc/subgid", "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	o.map65536()
}

func (o order) map65536() {
	ids := []specs.LinuxIDMapping{{HostID: someUser, Size: 1}, {ContainerID: 1, HostID: subIDs, Size: 65535}}
	o.Spec.Linux.UIDMappings, o.Spec.Linux.GIDMappings = ids, ids
}

func (o order) says(t *testing.T, attr *syscall.SysProcAttr, want string) {
	t.Helper()
	if got, err := o.runAs(t, attr); err != nil || got != want {
		t.Errorf("%v, it says %q, want %q", err, got, want)
	}
}

func (o order) refused(t *testing.T, attr *syscall.SysProcAttr, want string, env ...string) {
	t.Helper()
	got, err := o.runAs(t, attr, env...)
	if err == nil || !strings.Contains(got, want) {
		t.Errorf("%v, it says %q, want an error with %q", err, got, want)
	}
	if left, _ := filepath.Glob(filepath.Join(o.State, "*")); len(left) > 0 {
		t.Errorf("left in the state directory: %v", left)
	}
}

func inside(o order, script string) *specs.Process {
	p := *o.Spec.Process
	p.Args = []string{"/bin/sh", "-c", script}
	return &p
}

const (
	whoami = "id -u; id -g; id -G; tr -s ' ' < /proc/self/uid_map; stat -c '%n %u %t:%T' /bin/sh /dev/null; ls -A / | tr '\\n' ' '; ls " +
		"/proc/self/fd | wc -l; hostname"
	me = "0\n0\n0\n 0 4711 1\n/bin/sh 0 0:0\n/dev/null 0 1:3\nbin dev proc sys tmp 4\nboat"
)

// An ordinary user makes a container with nothing but the rights that everybody has.
func TestRootless(t *testing.T) {
	o := rootlessOrder(t, "read x; "+whoami)
	o.Exec = inside(o, "echo exec; "+whoami)
	want := strings.Replace(me, "/dev/null 0", "/dev/null 65534", 1) // the host's
	o.says(t, asUser(), "exec\n"+want+"\n"+want)
}

func TestRootlessWithManyIDs(t *testing.T) {
	o := rootlessOrder(t, "read x; id; cat /tmp/hooked; stat -c '%u %g' /tmp/hooked; cat /var/x; stat -c '%u' /var/x")
	o.withSubIDs(t)
	o.Exec = inside(o, "id; tr -s ' ' < /proc/self/gid_map")
	o.Spec.Process.User = specs.User{UID: 1000, GID: 100, AdditionalGids: []uint32{5, 7}}
	o.Exec.User = specs.User{UID: 3, GID: 4}
	var marks []string
	mark := func(name string) []specs.Hook {
		file := filepath.Join(filepath.Dir(o.State), name)
		marks = append(marks, file)
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "id -u > " + file}}}
	}
	o.Spec.Hooks = &specs.Hooks{
		CreateRuntime: mark("createRuntime"), CreateContainer: mark("createContainer"), Poststart: mark("poststart"), Poststop: mark("poststop"),
		StartContainer: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "echo hook > /tmp/hooked"}}},
	}
	rootfs := filepath.Join(o.Bundle, "rootfs")
	for _, err := range []error{
		os.Mkdir(filepath.Join(rootfs, "var"), 0o755), os.WriteFile(filepath.Join(rootfs, "var/x"), []byte("copied\n"), 0o644),
		os.Lchown(filepath.Join(rootfs, "var"), someUser, someUser), os.Lchown(filepath.Join(rootfs, "var/x"), someUser, someUser),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	o.Spec.Mounts = append(o.Spec.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup"}})
	o.says(t, asUser(), "uid=3 gid=4\n 0 4711 1\n 1 300000 65535\nuid=1000 gid=100 groups=5,7\nhook\n1000 100\ncopied\n0")
	for i, want := range []string{"4711", "0", "4711", "4711"} {
		if got, err := os.ReadFile(marks[i]); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("hook %s ran as user %q, %v", filepath.Base(marks[i]), got, err)
		}
	}
}

func TestRootlessRefusals(t *testing.T) {
	many := func(t *testing.T) order {
		o := rootlessOrder(t, "true")
		o.map65536()
		return o
	}
	t.Run("ids that were not delegated", func(t *testing.T) {
		many(t).refused(t, asUser(), "see whether /etc/subuid gives these ids to the user")
	})
	t.Run("no newuidmap", func(t *testing.T) {
		many(t).refused(t, asUser(), "install it (Debian: uidmap), or map no id but your own: containerID 0, hostID 4711, size 1",
			"PATH=/nowhere")
	})
	t.Run("groups", func(t *testing.T) {
		o := rootlessOrder(t, "true")
		o.Spec.Process.User.AdditionalGids = []uint32{5}
		o.refused(t, asUser(), "process.user.additionalGids cannot be set")
	})
	t.Run("id-mapped volume", func(t *testing.T) {
		o := rootlessOrder(t, "true")
		o.Spec.Mounts = append(o.Spec.Mounts, specs.Mount{Destination: "/v", Type: "bind", Source: o.Bundle, Options: []string{"idmap"}})
		o.refused(t, asUser(), "only root of the host can map the owners of files")
	})
	t.Run("no user namespace", func(t *testing.T) {
		o := rootlessOrder(t, "true")
		o.Spec.Linux.Namespaces = o.Spec.Linux.Namespaces[:len(o.Spec.Linux.Namespaces)-1]
		o.Spec.Linux.UIDMappings, o.Spec.Linux.GIDMappings = nil, nil
		o.refused(t, asUser(), "add a user namespace to linux.namespaces")
	})
}

// inUserNamespace is root of a user namespace, as those are who run under podman unshare.
func inUserNamespace(flags uintptr) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: someUser, Size: 1}, {ContainerID: 1, HostID: subIDs, Size: 65535}}
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | flags, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
	}
}

// Root of a user namespace makes containers in it, and in one below it, whether it has mounts of
// its own or not.
func TestRootOfUserNamespace(t *testing.T) {
	for name, flags := range map[string]uintptr{"with mounts of its own": syscall.CLONE_NEWNS, "with the host's mounts": 0} {
		t.Run(name, func(t *testing.T) {
			script := "read x; id; tr -s ' ' < /proc/self/uid_map; stat -c '%n %u' /bin/sh"
			o := rootlessOrder(t, script)
			o.Spec.Linux.Namespaces = o.Spec.Linux.Namespaces[:len(o.Spec.Linux.Namespaces)-1]
			o.Spec.Linux.UIDMappings, o.Spec.Linux.GIDMappings = nil, nil
			o.Spec.Process.User.AdditionalGids = []uint32{5}
			o.Exec = inside(o, "echo exec; id")
			o.says(t, inUserNamespace(flags), "exec\nuid=0 gid=0 groups=5\nuid=0 gid=0 groups=5\n 0 4711 1\n 1 300000 65535\n/bin/sh 0")

			o = rootlessOrder(t, script)
			below := []specs.LinuxIDMapping{{HostID: 0, Size: 1}, {ContainerID: 1, HostID: 1, Size: 99}}
			o.Spec.Linux.UIDMappings, o.Spec.Linux.GIDMappings = below, below
			o.Exec = inside(o, "echo exec; id")
			o.says(t, inUserNamespace(flags), "exec\nuid=0 gid=0\nuid=0 gid=0\n 0 0 1\n 1 1 99\n/bin/sh 0")
		})
	}
}

// Cgroups that are delegated to the user are made; others are not missed, unless they are asked
// for.
func TestRootlessCgroups(t *testing.T) {
	limit := int64(50)
	pids := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}
	t.Run("none", func(t *testing.T) {
		o := rootlessOrder(t, "true")
		o.Spec.Linux.Resources = pids
		got, err := o.runAs(t, asUser())
		if err == nil || !strings.Contains(got, "pids") || !strings.Contains(got, "cgroup") {
			t.Errorf("%v, it says %q", err, got)
		}
	})
	t.Run("named", func(t *testing.T) {
		o := rootlessOrder(t, "true")
		o.Spec.Linux.CgroupsPath = runtimetest.CgroupParent + "/boat"
		o.refused(t, asUser(), "remove linux.cgroupsPath, or have the cgroup above it delegated to this user")
	})
	t.Run("delegated", func(t *testing.T) {
		root := "/sys/fs/cgroup/pids"
		if _, err := os.Stat(root); err != nil {
			root = "/sys/fs/cgroup"
		}
		above, attr := delegate(t)
		o := rootlessOrder(t, "read x; cat /proc/self/cgroup")
		o.Spec.Linux.Namespaces = withoutNamespace(o.Spec.Linux.Namespaces, specs.CgroupNamespace)
		o.Spec.Linux.CgroupsPath, o.Spec.Linux.Resources = above+"/boat", pids
		o.Exec = inside(o, "cat "+filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(root, "/sys/fs/cgroup"), above, "boat/pids.max"))
		o.Spec.Mounts[len(o.Spec.Mounts)-1] = specs.Mount{Destination: "/sys", Type: "none", Source: "/sys", Options: []string{"rbind", "ro"}}
		got, err := o.runAs(t, attr)
		if first, rest, _ := strings.Cut(got, "\n"); err != nil || first != "50" || !strings.Contains(rest, above+"/boat") {
			t.Errorf("%v, it says %q", err, got)
		}
	})
}

func withoutNamespace(list []specs.LinuxNamespace, kind specs.LinuxNamespaceType) []specs.LinuxNamespace {
	return slices.DeleteFunc(list, func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// delegate makes a cgroup in each hierarchy that is the user's, and returns its path. On version 2
// the processes that are to go there have to come from there, too.
func delegate(t *testing.T) (string, *syscall.SysProcAttr) {
	t.Helper()
	path, attr := runtimetest.CgroupParent+"/user", asUser()
	roots := []string{"/sys/fs/cgroup"}
	unified := cgroups.IsCgroup2UnifiedMode()
	if !unified {
		var err error
		if roots, err = filepath.Glob("/sys/fs/cgroup/*/tasks"); err != nil {
			t.Fatal(err)
		}
		for i, tasks := range roots {
			roots[i] = filepath.Dir(tasks)
		}
	}
	t.Cleanup(func() {
		for _, root := range roots {
			_ = os.Remove(filepath.Join(root, path, "caller"))
			_ = os.Remove(filepath.Join(root, path))
		}
	})
	for _, root := range roots {
		dir := filepath.Join(root, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			for _, d := range []string{filepath.Dir(dir), dir} {
				if value, err := os.ReadFile(filepath.Join(root, f)); err == nil {
					_ = os.WriteFile(filepath.Join(d, f), value, 0)
				}
			}
		}
		for _, d := range []string{root, filepath.Dir(dir)} {
			if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+pids"), 0); unified && err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, f), someUser, someUser); err != nil && (unified || f == "") {
				t.Fatal(err)
			}
		}
		if unified {
			if err := os.Mkdir(filepath.Join(dir, "caller"), 0o755); err != nil {
				t.Fatal(err)
			}
			fd, err := os.Open(filepath.Join(dir, "caller"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = fd.Close() })
			attr.UseCgroupFD, attr.CgroupFD = true, int(fd.Fd())
		}
	}
	return path, attr
}
