package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// bind is a bind mount.
func bind(from, to string, options ...string) specs.Mount {
	return specs.Mount{Destination: to, Source: from, Type: "bind", Options: append([]string{"rbind"}, options...)}
}

// allCapabilities gives a container every capability that there is.
func allCapabilities(spec *specs.Spec) *specs.Spec {
	all := []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_NET_ADMIN",
		"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_MKNOD", "CAP_SYS_TIME",
	}
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	return spec
}

// tmpfs mounts a tmpfs on the host, shared with no one yet, and returns its path.
func (r *rig) tmpfs(propagation uintptr) string {
	r.Helper()
	dir := filepath.Join(r.TempDir(), "volume")
	r.must(os.Mkdir(dir, 0o755))
	r.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	r.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil {
		}
	})
	r.must(unix.Mount("", dir, "", propagation, ""))
	return dir
}

// exchange is a container that says "ready", waits for a line and goes on.
func (r *rig) exchange(spec *specs.Spec, meanwhile func()) string {
	r.Helper()
	in, out := r.output(), r.output()
	c := r.create(spec, runtime.Stdio{Stdin: in.read, Stdout: out.write, Stderr: out.write})
	pid := c.Pid()
	r.must(c.Start(r.Context()))
	if got := out.line(); got != "ready" {
		r.Errorf("the container says %q", got)
	}
	meanwhile()
	_, err := in.write.WriteString("go\n")
	r.must(err)
	r.wait(pid)
	text := out.text()
	r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	return text
}

var sharedVolume = differs("shared volume", `a volume with option shared or rshared, and linux.rootfsPropagation not shared`,
	"mounts made in it do not show on the host", "they do")

var rootFlags = differs("flags of the root", "flags such as nosuid of the mount that a read-only root file system is in", "are lost",
	"are kept")

var mountTests = map[string]func(*rig){
	"volumes get mounts made later on the host, and the host those of the container, as their propagation says": func(r *rig) {
		for _, c := range []struct {
			option    string
			in, there bool
		}{
			{"rprivate", false, false},
			{"private", false, false},
			{"rslave", true, false},
			{"slave", true, false},
			{"rshared", true, true},
			{"shared", true, true},
		} {
			vol := r.tmpfs(unix.MS_SHARED)
			r.must(os.Mkdir(filepath.Join(vol, "later"), 0o755))
			r.must(os.Mkdir(filepath.Join(vol, "in"), 0o755))
			spec := allCapabilities(
				r.spec("mount -t tmpfs tmpfs /vol/in && touch /vol/in/x; echo ready; read go; test -e /vol/later/x && echo seen; true"),
			)
			spec.Mounts = append(spec.Mounts, bind(vol, "/vol", c.option))
			got := r.exchange(spec, func() {
				_, err := os.Stat(filepath.Join(vol, "in/x"))
				if (err == nil) != (c.there && either(r, sharedVolume, false, true)) {
					r.Errorf("%s: does the host see what the container mounts? %v", c.option, err)
				}
				later := filepath.Join(vol, "later")
				r.must(unix.Mount("tmpfs", later, "tmpfs", 0, ""))
				r.must(os.WriteFile(filepath.Join(later, "x"), nil, 0o644))
			})
			if (got == "seen") != c.in {
				r.Errorf("%s: the container says %q of what the host mounts later", c.option, got)
			}
			for _, d := range []string{"later", "in"} {
				_ = unix.Unmount(filepath.Join(vol, d), unix.MNT_DETACH)
			}
		}
	},

	"a volume without a propagation takes the root's": func(r *rig) {
		for _, c := range []struct{ root, want string }{{"", "seen"}, {"rslave", "seen"}, {"rprivate", ""}} {
			vol := r.tmpfs(unix.MS_SHARED)
			r.must(os.Mkdir(filepath.Join(vol, "later"), 0o755))
			spec := r.spec("echo ready; read go; test -e /vol/later/x && echo seen; true")
			spec.Linux.RootfsPropagation = c.root
			spec.Mounts = append(spec.Mounts, bind(vol, "/vol"))
			got := r.exchange(spec, func() {
				later := filepath.Join(vol, "later")
				r.must(unix.Mount("tmpfs", later, "tmpfs", 0, ""))
				r.must(os.WriteFile(filepath.Join(later, "x"), nil, 0o644))
			})
			if got != c.want {
				r.Errorf("rootfsPropagation %q: the container says %q, want %q", c.root, got, c.want)
			}
			_ = unix.Unmount(filepath.Join(vol, "later"), unix.MNT_DETACH)
		}
	},

	"a volume may be of what an earlier mount has brought": func(r *rig) {
		vol := r.TempDir()
		r.must(os.Mkdir(filepath.Join(vol, "sub"), 0o755))
		r.must(os.WriteFile(filepath.Join(vol, "sub", "x"), []byte("in it\n"), 0o644))
		r.must(os.WriteFile(filepath.Join(vol, "file"), []byte("a file\n"), 0o644))
		spec := r.spec("cat /copy/x /file; echo y 2>/dev/null > /copy/x || echo refused")
		spec.Mounts = append(spec.Mounts, bind(vol, "/vol"), bind(r.inRoot("vol/sub"), "/copy", "ro"), bind(r.inRoot("vol/file"), "/file"))
		r.says(spec, "in it\na file\nrefused")
	},

	"targets may be links to what is not there, which is made in the container": func(r *rig) {
		r.must(os.Mkdir(r.inRoot("etc"), 0o755))
		r.must(os.Symlink("../run/systemd/resolve/stub", r.inRoot("etc/resolv.conf")))
		r.must(os.Symlink("/opt/../../../srv/data", r.inRoot("mnt")))
		file, dir := r.file("mounted", "here"), r.TempDir()
		for _, spec := range []*specs.Spec{
			r.spec("cat /run/systemd/resolve/stub; ls -d /srv/data/in; grep -c ' /srv/data/in ' /proc/mounts"),
			nil,
		} {
			if spec == nil {
				r.must(os.RemoveAll(r.inRoot("run")))
				spec = r.inUserNamespace(r.spec("cat /run/systemd/resolve/stub; stat -c %u /run/systemd; ls -d /srv/data/in"))
			}
			spec.Mounts = append(spec.Mounts, bind(file, "/etc/resolv.conf"), bind(dir, "/mnt/in"))
			got, _ := r.run(spec)
			if got != "here/srv/data/in\n1" && got != "here0\n/srv/data/in" {
				r.Errorf("the container says %q", got)
			}
		}
		if _, err := os.Lstat("/srv/data"); err == nil {
			r.Error("the target was made on the host")
		}
	},

	"a read-only root keeps the flags that its mount has": func(r *rig) {
		root := r.inRoot("")
		r.must(unix.Mount(root, root, "", unix.MS_BIND, ""))
		r.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		r.must(unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV, ""))
		spec := r.spec(`while read a at b options c; do test $at = / && echo $options; done < /proc/mounts | tr , '\n' | grep -E '^(ro|nosuid|nodev)$' | tr '\n' ' '`)
		spec.Root.Readonly = true
		r.says(spec, either(r, rootFlags, "ro", "ro nosuid nodev"))
		r.must(unix.Unmount(root, unix.MNT_DETACH))
	},

	"rootfsPropagation shows in mountinfo": func(r *rig) {
		for value, want := range map[string]string{
			"private": "", "rprivate": "", "unbindable": "unbindable", "shared": "shared",
			"rshared": "shared",
		} {
			spec := r.spec(`while read a b c d at f tag g; do test $at = / && echo $tag | cut -d: -f1; done < /proc/self/mountinfo; true`)
			spec.Linux.RootfsPropagation = value
			got, _ := r.run(spec)
			got = strings.TrimPrefix(got, "-")
			if got != want {
				r.Errorf("%s: the root is %q, want %q", value, got, want)
			}
		}
	},

	"options of bind mounts, for the mount alone or all below": func(r *rig) {
		vol := r.tmpfs(unix.MS_PRIVATE)
		sub := filepath.Join(vol, "sub")
		r.must(os.Mkdir(sub, 0o755))
		r.must(unix.Mount("tmpfs", sub, "tmpfs", 0, ""))
		for _, c := range []struct{ options, want string }{
			{"ro", "vol ro\nsub rw"},
			{"rro", "vol ro\nsub ro"},
			{"nosuid,nodev,noexec", "vol rw,nosuid,nodev,noexec\nsub rw"},
			{"rnosuid,rnodev,rnoexec", "vol rw,nosuid,nodev,noexec\nsub rw,nosuid,nodev,noexec"},
			{"noatime", "vol rw,noatime\nsub rw"},
			{"nodiratime", "vol rw,nodiratime\nsub rw"},
			{"nosymfollow", "vol rw,nosymfollow\nsub rw"},
		} {
			spec := r.spec(
				`while read a b c d at opts f; do case $at in /vol) echo vol $opts;; /vol/sub) echo sub $opts;; esac; done < /proc/self/mountinfo`,
			)
			spec.Mounts = append(spec.Mounts, bind(vol, "/vol", strings.Split(c.options, ",")...))
			if r.old && strings.HasPrefix(c.options, "r") && c.options != "ro" {
				r.refused(spec, "need Linux 5.12")
				continue
			}
			got, _ := r.run(spec)
			got = strings.ReplaceAll(got, ",relatime", "")
			if got != c.want {
				r.Errorf("%s: got %q, want %q", c.options, got, c.want)
			}
		}
	},

	"bind is of one mount, rbind of all": func(r *rig) {
		vol := r.tmpfs(unix.MS_PRIVATE)
		sub := filepath.Join(vol, "sub")
		r.must(os.Mkdir(sub, 0o755))
		r.must(unix.Mount("tmpfs", sub, "tmpfs", 0, ""))
		r.must(os.WriteFile(filepath.Join(sub, "x"), nil, 0o644))
		for option, want := range map[string]string{"bind": "no", "rbind": "yes"} {
			spec := r.spec("test -e /vol/sub/x && echo yes || echo no")
			spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/vol", Source: vol, Options: []string{option}})
			r.says(spec, want)
		}
	},

	"file systems have their options": func(r *rig) {
		spec := r.spec(`stat -c %a /t; while read a b c d at opts rest; do case $at in /t) echo $rest | grep -o 'size=[0-9]*k';; /ro) echo $opts;; esac; done < /proc/self/mountinfo; ` +
			`touch /ro/x 2>&1; touch /dev/mqueue/q && echo queue; touch /dev/shm/s && echo shm; stat -f -c %T /dev/mqueue`)
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/t", Type: "tmpfs", Source: "tmpfs", Options: []string{"size=4m", "mode=1700"}},
			specs.Mount{Destination: "/ro", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro", "nosuid"}},
		)
		r.says(spec, "1700\nsize=4096k\nro,nosuid,relatime\ntouch: /ro/x: Read-only file system\nqueue\nshm\nUNKNOWN")
	},

	"a read-only tmpfs takes mounts": func(r *rig) {
		spec := r.spec("cat /ro/deep/note; touch /ro/x 2>&1")
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/ro", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro"}},
			bind(r.file("note", "hello\n"), "/ro/deep/note"),
		)
		r.says(spec, "hello\ntouch: /ro/x: Read-only file system")
	},

	"a read-only root takes mounts": func(r *rig) {
		spec := r.spec("cat /made/for/note; touch /x 2>&1")
		spec.Root.Readonly = true
		spec.Mounts = append(spec.Mounts, bind(r.file("note", "hello\n"), "/made/for/note"))
		r.says(spec, "hello\ntouch: /x: Read-only file system")
	},

	"mounts over files, missing targets, dots": func(r *rig) {
		r.must(os.WriteFile(r.inRoot("old"), []byte("old\n"), 0o644))
		note, dir := r.file("note", "new\n"), filepath.Dir(r.file("dir/x", "x\n"))
		spec := r.spec("cat /old /a/b/c/file /tmp/up /d/e/x")
		spec.Mounts = append(spec.Mounts,
			bind(note, "/old"), bind(note, "/a/b/c/file"), bind(note, "/tmp/../tmp/./up"), bind(dir, "d/e"))
		r.says(spec, "new\nnew\nnew\nx")
	},

	"a directory cannot be mounted on a file, nor a file on a directory": func(r *rig) {
		r.must(os.WriteFile(r.inRoot("file"), nil, 0o644))
		note := r.file("note", "new\n")
		for _, m := range []specs.Mount{bind(filepath.Dir(note), "/file"), bind(note, "/tmp")} {
			spec := r.spec("true")
			spec.Mounts = append(spec.Mounts, m)
			r.refused(spec, "ot a directory")
		}
	},

	"symbolic links of the image stay in the image": func(r *rig) {
		note := r.file("note", "mounted\n")
		outside := filepath.Join(r.TempDir(), "outside")
		r.must(os.Mkdir(outside, 0o755))
		for _, l := range []struct{ to, at string }{
			{"tmp", "rel"},
			{"/tmp", "abs"},
			{"../../../../../../../../tmp", "up"},
			{outside, "out"},
			{"../../../.." + outside, "out2"},
			{"a/../rel", "chain"},
		} {
			r.must(os.Symlink(l.to, r.inRoot(l.at)))
		}
		r.must(os.Mkdir(r.inRoot("a"), 0o755))
		spec := r.spec("cd /tmp; cat rel abs up chain")
		for _, l := range []string{"rel", "abs", "up", "chain"} {
			spec.Mounts = append(spec.Mounts, bind(note, "/"+l+"/"+l))
		}
		r.says(spec, "mounted\nmounted\nmounted\nmounted")
		entries, err := os.ReadDir(outside)
		r.must(err)
		if len(entries) > 0 {
			r.Errorf("made on the host: %v", entries)
		}
	},

	"a dangling link as a target never makes anything outside": func(r *rig) {
		outside := filepath.Join(r.TempDir(), "outside")
		r.must(os.Symlink(outside+"/dir", r.inRoot("dangling")))
		spec := r.spec("true")
		spec.Mounts = append(spec.Mounts, bind(r.file("note", "x"), "/dangling"))
		c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		if err == nil {
			r.end(c, c.Pid())
		}
		if _, err := os.Lstat(outside); err == nil {
			r.Error("the target was made on the host")
		}
	},

	"a loop of links is an error": func(r *rig) {
		r.must(os.Symlink("loop", r.inRoot("loop")))
		spec := r.spec("true")
		spec.Mounts = append(spec.Mounts, bind(r.file("note", "x"), "/loop/x"))
		r.refused(spec, "too many levels of symbolic links")
	},

	"magic links lead nowhere": func(r *rig) {
		for i, to := range []string{"/proc/self/fd/3", "/proc/self/fd/7/tmp", "/proc/self/root/tmp", "/proc/1/cwd", "/proc/self/exe"} {
			at := fmt.Sprint("magic", i)
			r.must(os.Symlink(to, r.inRoot(at)))
			spec := r.spec("true")
			spec.Mounts = append(spec.Mounts, bind(r.bundle, "/"+at))
			c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
			if err == nil {
				r.Errorf("%s: create succeeded", to)
				r.end(c, c.Pid())
			}
		}
	},

	"nothing is mounted in /proc, by whatever way": func(r *rig) {
		note := r.file("note", "x\n")
		r.must(os.Symlink("/proc/sys", r.inRoot("sneaky")))
		r.must(os.Symlink("proc", r.inRoot("p")))
		for _, m := range []specs.Mount{
			bind(note, "/proc/version"), bind(r.bundle, "/proc/sys"), bind(note, "/proc/self/attr/exec"), bind(note, "/proc/1/environ"),
			{Destination: "/proc/fs", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/tmp/../proc/fs", Type: "tmpfs", Source: "tmpfs"},
			bind(r.bundle, "/sneaky"), bind(r.bundle, "/sneaky/kernel"), bind(r.bundle, "/p/sys"),
		} {
			spec := r.spec("true")
			spec.Mounts = append(spec.Mounts, m)
			r.refused(spec, "proc")
		}
	},

	"files of /proc that show figures may be covered": func(r *rig) {
		note := r.file("note", "covered\n")
		spec := r.spec("cat /proc/uptime /proc/meminfo")
		spec.Mounts = append(spec.Mounts, bind(note, "/proc/uptime"), bind(note, "/proc/meminfo"))
		r.says(spec, "covered\ncovered")
	},

	"only proc is mounted on /proc": func(r *rig) {
		for _, m := range []specs.Mount{
			{Destination: "/proc", Type: "tmpfs", Source: "tmpfs"},
			bind(r.bundle, "/proc"),
			{Destination: "/proc/.", Type: "sysfs", Source: "sysfs"},
		} {
			spec := r.spec("true")
			spec.Mounts = append(spec.Mounts[1:], m)
			r.refused(spec, "proc")
		}
		spec := r.spec("test -e /proc/uptime && echo proc")
		spec.Mounts[0] = bind("/proc", "/proc")
		r.says(spec, "proc")
	},

	// CVE-2023-28642.
	"proc and sysfs are mounted on directories, not through links": func(r *rig) {
		for _, name := range []string{"proc", "sys"} {
			r.must(os.Remove(r.inRoot(name)))
			r.must(os.Symlink("/tmp", r.inRoot(name)))
			r.refused(r.spec("true"), "must be mounted on ordinary directory")
			r.must(os.Remove(r.inRoot(name)))
			r.must(os.Mkdir(r.inRoot(name), 0o755))
		}
	},

	// CVE-2026-41579: the names that every /dev has were made and removed by path.
	"a link in place of /dev leads nowhere": func(r *rig) {
		host := filepath.Join(r.bundle, "host-dev")
		r.must(os.Mkdir(host, 0o755))
		r.must(os.WriteFile(filepath.Join(host, "ptmx"), []byte("host"), 0o644))
		relative, err := filepath.Rel(r.inRoot("."), host)
		r.must(err)
		for _, target := range []string{host, relative} {
			r.must(os.RemoveAll(r.inRoot("dev")))
			r.must(os.Symlink(target, r.inRoot("dev")))
			// By path, the attack gets there.
			if content, err := os.ReadFile(r.inRoot("dev/ptmx")); string(content) != "host" {
				r.Fatalf("control: %q, %v", content, err)
			}
			spec := r.spec("true")
			spec.Mounts = slices.DeleteFunc(spec.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/dev") })
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: "/dev/made", Type: "c", Major: 1, Minor: 3})
			if c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle}); err == nil {
				pid := c.Pid()
				r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
				r.wait(pid)
			}
			entries, err := os.ReadDir(host)
			r.must(err)
			content, err := os.ReadFile(filepath.Join(host, "ptmx"))
			if err != nil || string(content) != "host" || len(entries) != 1 {
				r.Errorf("by %s: the host's ptmx is %q, %v; its directory has %v", target, content, err, entries)
			}
		}
		r.must(os.Remove(r.inRoot("dev")))
		r.must(os.Mkdir(r.inRoot("dev"), 0o755))
	},

	"id-mapped bind mounts": func(r *rig) {
		vol := r.tmpfs(unix.MS_PRIVATE)
		sub := filepath.Join(vol, "sub")
		r.must(os.Mkdir(sub, 0o755))
		r.must(unix.Mount("tmpfs", sub, "tmpfs", 0, ""))
		for _, f := range []string{"x", "sub/x"} {
			r.must(os.WriteFile(filepath.Join(vol, f), nil, 0o644))
			r.must(os.Chown(filepath.Join(vol, f), 100005, 200006))
		}
		for option, want := range map[string]string{"idmap": "5:6 100005:200006", "ridmap": "5:6 5:6"} {
			spec := r.spec("echo $(stat -c %u:%g /vol/x /vol/sub/x)")
			m := bind(vol, "/vol", option)
			m.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 100000, HostID: 0, Size: 1000}}
			m.GIDMappings = []specs.LinuxIDMapping{{ContainerID: 200000, HostID: 0, Size: 1000}}
			spec.Mounts = append(spec.Mounts, m)
			r.says(spec, want)
		}
	},

	"cgroup mounts show the container's cgroups": func(r *rig) {
		const (
			mounted  = "test -e /sys/fs/cgroup/pids/cgroup.procs -o -e /sys/fs/cgroup/cgroup.procs && echo mounted; "
			own      = `grep -q "^1$" /sys/fs/cgroup/pids/cgroup.procs /sys/fs/cgroup/cgroup.procs 2>/dev/null && echo own; `
			readonly = "echo 1 2>/dev/null > /sys/fs/cgroup/pids/tasks || echo read-only; "
			path     = "{ grep :pids: /proc/self/cgroup || grep ^0:: /proc/self/cgroup; } | cut -d: -f3"
		)
		for _, namespaced := range []bool{true, false} {
			script, want := mounted+own+readonly+path, "mounted\nown\nread-only\n"
			if !namespaced && cgroups.IsCgroup2UnifiedMode() { // runc shows the whole hierarchy then
				script, want = mounted+readonly+path, "mounted\nread-only\n"
			}
			spec := r.spec(script)
			if namespaced {
				want += "/"
			} else {
				spec.Linux.Namespaces = spec.Linux.Namespaces[:5]
				want += spec.Linux.CgroupsPath
			}
			spec.Mounts = append(spec.Mounts,
				specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec", "nodev"}})
			r.says(spec, want)
		}
	},
}
