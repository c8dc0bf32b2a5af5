package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

const hostIDs = 100000 // what a test's user namespace maps 0 to

// inUserNamespace gives a container a user namespace of its own, and the files of its root to
// its root.
func (r *rig) inUserNamespace(spec *specs.Spec) *specs.Spec {
	r.Helper()
	spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: hostIDs, Size: 65536}}
	spec.Linux.GIDMappings = spec.Linux.UIDMappings
	r.ownRoot(hostIDs)
	return spec
}

// ownRoot gives the root file system to a user, who must be able to get there.
func (r *rig) ownRoot(id int) {
	r.Helper()
	r.must(filepath.WalkDir(r.inRoot(""), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	}))
	for dir := r.bundle; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		r.must(os.Chmod(dir, 0o755))
	}
}

var userTests = map[string]func(*rig){
	"a user namespace: ids, owners of files, devices of the host": func(r *rig) {
		spec := r.inUserNamespace(r.spec("id -u; id -g; cut -c1-40 /proc/self/uid_map | tr -s ' '; touch /tmp/x; stat -c %u:%g /bin/sh /tmp/x; " +
			"stat -c '%F %t:%T' /dev/null /dev/zero /dev/mine; echo x > /dev/null && echo writable; hostname; cat /proc/self/oom_score_adj; " +
			"ulimit -n"))
		spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/full", Type: "c", Major: 1, Minor: 7}}
		spec.Process.OOMScoreAdj = ptr(300)
		spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 512, Hard: 1024}}
		got, _ := r.run(spec)
		want := "0\n0\n 0 100000 65536\n0:0\n0:0\ncharacter special file 1:3\ncharacter special file 1:5\n" +
			"stat: can't stat '/dev/mine': No such file or directory\nwritable\nboat\n300\n512"
		if got != want {
			r.Errorf("got %q, want %q", got, want)
		}
		var st unix.Stat_t
		r.must(unix.Stat(r.inRoot("tmp/x"), &st))
		if st.Uid != hostIDs || st.Gid != hostIDs {
			r.Errorf("on the host the new file is %d:%d's", st.Uid, st.Gid)
		}
	},

	"devices are their root's also after a container with a user namespace": func(r *rig) {
		r.run(r.inUserNamespace(r.spec("true")))
		r.ownRoot(0)
		r.says(r.spec("stat -c %u:%g /dev/null /dev/full"), "0:0\n0:0")
	},

	"an id-mapped volume in a user namespace that is joined": func(r *rig) {
		first := r.create(r.inUserNamespace(Spec(r.id(), "/bin/sleep", "1000")), runtime.Stdio{})
		pid := first.Pid()
		r.must(first.Start(r.Context()))
		vol := r.tmpfs(unix.MS_PRIVATE)
		r.must(os.WriteFile(filepath.Join(vol, "x"), nil, 0o644))
		r.must(os.Chown(filepath.Join(vol, "x"), 5, 6))
		for option, want := range map[string]string{"rbind": "65534:65534", "idmap": "5:6"} {
			spec := r.spec("stat -c %u:%g /vol/x")
			spec.Linux.Namespaces = append(spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.UserNamespace, Path: fmt.Sprintf("/proc/%d/ns/user", pid)})
			spec.Mounts = append(spec.Mounts, bind(vol, "/vol", option))
			r.says(spec, want)
		}
		r.end(first, pid)
	},

	"a user namespace: exec": func(r *rig) {
		c := r.create(r.inUserNamespace(Spec(r.id(), "/bin/sleep", "1000")), runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		// libcontainer's engine sets the score when the process runs already.
		p := process(
			"id -u; id -g; id -G; cut -c1-40 /proc/self/uid_map | tr -s ' '; until grep -x 400 /proc/self/oom_score_adj; do :; done; grep CapEff " +
				"/proc/self/status | cut -c9-",
		)
		p.OOMScoreAdj = ptr(400)
		p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}, {Type: "RLIMIT_CORE"}}
		r.execSays(c, p, "0\n0\n0\n 0 100000 65536\n400\n00000000880425fb")
		p = process("id -u; id -g; id -G")
		p.User = specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{7}}
		r.execSays(c, p, "5\n6\n6 7")
		r.end(c, pid)
	},

	"a user namespace without id 0 is refused": func(r *rig) {
		spec := r.inUserNamespace(r.spec("true"))
		spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 1, HostID: hostIDs, Size: 10}}
		c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		if err == nil {
			r.Error("create succeeded")
			r.end(c, c.Pid())
		}
	},

	"a user namespace: volumes, masked and read-only paths, sysctls, terminal": func(r *rig) {
		spec := r.inUserNamespace(
			r.spec(
				"cat /vol; cat /proc/sys/net/ipv4/ip_forward; echo x 2>/dev/null > /proc/sys/net/ipv4/ip_forward || echo read-only; ls " +
					"/sys/firmware; stat -c %u /dev/console; tty",
			),
		)
		spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
		spec.Mounts = append(spec.Mounts, bind(r.file("note", "note\n"), "/vol", "ro"))
		spec.Process.Terminal = true
		pair, err := runtime.NewConsolePair()
		r.must(err)
		defer pair.Close()
		c := r.create(spec, runtime.Stdio{Console: pair.EngineEnd()})
		pid := c.Pid()
		master, err := pair.Receive(r.Context())
		r.must(err)
		defer master.Close()
		r.must(c.Start(r.Context()))
		text := readTerminal(r, master)
		r.wait(pid)
		if want := "note\n1\nread-only\n0\n/dev/pts/0"; text != want {
			r.Errorf("got %q, want %q", text, want)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"a volume with the ids of the container's user namespace": func(r *rig) {
		vol := r.tmpfs(unix.MS_PRIVATE)
		r.must(os.WriteFile(filepath.Join(vol, "x"), nil, 0o644))
		r.must(os.Chown(filepath.Join(vol, "x"), 5, 6))
		spec := r.inUserNamespace(r.spec("stat -c %u:%g /vol/x"))
		spec.Mounts = append(spec.Mounts, bind(vol, "/vol", "idmap"))
		r.says(spec, "5:6")
	},
}
