package runtimetest

import (
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

var copiedTimes = differs("times of copies", "times of files that tmpcopyup copies", "the present", "those of the image's")

var tmpfsTests = map[string]func(*rig){
	"tmpcopyup: a tmpfs begins with what the image has there": func(r *rig) {
		r.file("rootfs/var/keep", "kept")
		r.file("rootfs/var/deep/er/x", "deep")
		r.must(os.Symlink("/etc/shadow", r.inRoot("var/link")))
		r.must(os.Lchown(r.inRoot("var/keep"), 7, 8))
		r.must(os.Chmod(r.inRoot("var/keep"), os.ModeSetuid|0o751))
		r.must(os.Chmod(r.inRoot("var/deep"), 0o711))
		r.must(unix.UtimesNanoAt(unix.AT_FDCWD, r.inRoot("var/keep"), []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0))
		r.must(os.Chmod(r.inRoot("var"), 0o750))
		spec := r.spec(
			"cd /var && cat keep deep/er/x && echo && stat -c '%n %F %u:%g %a' . keep deep link && readlink link; test $(stat -c %Y keep) = 2 && " +
				"echo old; echo new > keep; grep -c ' /var tmpfs ' /proc/mounts",
		)
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "nosuid"}})
		want := "keptdeep\n. directory 0:0 750\nkeep regular file 7:8 4751\ndeep directory 0:0 711\nlink symbolic link 0:0 777\n"
		r.says(spec, want+"/etc/shadow\n"+either(r, copiedTimes, "", "old\n")+"1")
		if data, err := os.ReadFile(r.inRoot("var/keep")); err != nil || string(data) != "kept" {
			r.Errorf("the image's file is now %q, %v", data, err)
		}
	},

	"tmpcopyup: read-only, in a user namespace": func(r *rig) {
		r.file("rootfs/var/keep", "kept")
		spec := r.inUserNamespace(r.spec("cd /var && cat keep && echo && stat -c %u keep; echo x 2>/dev/null > keep || echo refused"))
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "ro"}})
		r.says(spec, "kept\n0\nrefused")
	},

	"tmpcopyup: more than fits": func(r *rig) {
		r.file("rootfs/var/big", string(make([]byte, 1<<20)))
		spec := r.spec("true")
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs", Options: []string{"tmpcopyup", "size=64k"}})
		r.refused(spec, "no space left on device")
	},

	"a tmpfs has the mode of the directory it covers, unless it is said": func(r *rig) {
		r.must(os.MkdirAll(r.inRoot("var"), 0o755))
		r.must(os.Chmod(r.inRoot("var"), os.ModeSticky|0o733))
		spec := r.spec("stat -c %a /var /new")
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs"},
			specs.Mount{Destination: "/new", Type: "tmpfs", Source: "tmpfs"})
		r.says(spec, "1733\n1777")
		spec = r.spec("stat -c %a /var")
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/var", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=700"}})
		r.says(spec, "700")
	},
}
