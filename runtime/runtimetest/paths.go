package runtimetest

import (
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func ptr[T any](v T) *T { return &v }

var pathTests = map[string]func(*rig){
	"masked paths may be files, directories, links or missing": func(r *rig) {
		r.must(os.WriteFile(r.inRoot("file"), []byte("secret\n"), 0o644))
		r.must(os.MkdirAll(r.inRoot("dir/sub"), 0o755))
		r.must(os.Symlink("file", r.inRoot("link")))
		r.must(os.Symlink("nowhere", r.inRoot("dangling")))
		spec := r.spec("cat /file /link; ls /dir; touch /dir/x 2>&1; echo end")
		spec.Linux.MaskedPaths = append(spec.Linux.MaskedPaths, "/link", "/dir", "/dangling", "/missing", "/dir")
		r.says(spec, "touch: /dir/x: Read-only file system\nend")
	},

	"read-only paths may be files, directories, links or missing, and keep their options": func(r *rig) {
		r.must(os.WriteFile(r.inRoot("file"), nil, 0o644))
		r.must(os.MkdirAll(r.inRoot("dir"), 0o755))
		r.must(os.Symlink("dir", r.inRoot("link")))
		r.must(os.WriteFile(r.inRoot("dir/run"), []byte("#!/bin/sh\necho runs\n"), 0o755))
		spec := r.spec("echo x 2>&1 > /file; touch /dir/x 2>&1; /dir/run; echo 1 2>&1 > /proc/sys/kernel/domainname")
		spec.Linux.ReadonlyPaths = append(spec.Linux.ReadonlyPaths, "/file", "/link", "/missing")
		got, _ := r.run(spec)
		want := "/bin/sh: can't create /file: Read-only file system\ntouch: /dir/x: Read-only file system\nruns\n" +
			"/bin/sh: can't create /proc/sys/kernel/domainname: Read-only file system"
		if got != want {
			r.Errorf("got %q, want %q", got, want)
		}
	},

	"devices have their numbers, modes and owners": func(r *rig) {
		spec := r.spec(
			"cd /dev; stat -c '%n %F %t:%T %a %u:%g' null zero full random urandom tty mine block pipe deep/er; for l in fd stdin ptmx; do " +
				"readlink $l; done",
		)
		mode := func(m os.FileMode) *os.FileMode { return &m }
		spec.Linux.Devices = []specs.LinuxDevice{
			{Path: "/dev/mine", Type: "c", Major: 1, Minor: 3, FileMode: mode(0o640), UID: ptr(uint32(7)), GID: ptr(uint32(8))},
			{Path: "/dev/block", Type: "b", Major: 7, Minor: 77, FileMode: mode(0o600)},
			{Path: "/dev/pipe", Type: "p", FileMode: mode(0o622)},
			{Path: "/dev/deep/er", Type: "u", Major: 1, Minor: 5},
			{Path: "/dev/tty", Type: "c", Major: 5, Minor: 0, FileMode: mode(0o600)},
		}
		r.says(spec, strings.Join([]string{
			"null character special file 1:3 666 0:0", "zero character special file 1:5 666 0:0", "full character special file 1:7 666 0:0",
			"random character special file 1:8 666 0:0", "urandom character special file 1:9 666 0:0", "tty character special file 5:0 600 0:0",
			"mine character special file 1:3 640 7:8", "block block special file 7:4d 600 0:0", "pipe fifo 0:0 622 0:0",
			"deep/er character special file 1:5 666 0:0",
			"/proc/self/fd", "/proc/self/fd/0", "pts/ptmx",
		}, "\n"))
	},

	"a device that is in the image already stays": func(r *rig) {
		spec := r.spec("stat -c %F /dev/mine")
		spec.Mounts = append(spec.Mounts[:1:1], spec.Mounts[5:]...) // /dev is the image's
		r.must(os.WriteFile(r.inRoot("dev/mine"), nil, 0o644))
		spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/mine", Type: "c", Major: 1, Minor: 3}}
		r.says(spec, "regular empty file")
	},

	"a read-only /dev": func(r *rig) {
		spec := r.spec("test -c /dev/null && echo device; touch /dev/x 2>&1")
		spec.Mounts[1].Options = append(spec.Mounts[1].Options, "ro")
		r.says(spec, "device\ntouch: /dev/x: Read-only file system")
	},
}
