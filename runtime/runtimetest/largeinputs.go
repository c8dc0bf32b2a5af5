package runtimetest

import (
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

// hasText expects an error with a text.
func (r *rig) hasText(err error, want string) {
	r.Helper()
	if !strings.Contains(err.Error(), want) {
		r.Errorf("error is %q, want one with %q", err, want)
	}
}

var bigTests = map[string]func(*rig){
	"260 mounts, deep": func(r *rig) {
		spec := r.spec("cat /m0/a/b/c/d/e/f /m259/a/b/c/d/e/f; grep -c note /proc/self/mountinfo")
		note := r.file("note", "deep\n")
		for i := range 260 {
			spec.Mounts = append(spec.Mounts, bind(note, fmt.Sprintf("/m%d/a/b/c/d/e/f", i)))
		}
		r.says(spec, "deep\ndeep\n260")
	},

	"300 descriptors for the program": func(r *rig) {
		out := r.output()
		files := make([]*os.File, 300)
		for i := range files {
			files[i] = out.write
		}
		spec := r.spec("ls /proc/self/fd | wc -l; echo last >&302")
		spec.Process.Args = []string{"/bin/sh", "-c", "n=0; for f in /proc/$$/fd/*; do n=$((n+1)); done; echo $n; echo last > /proc/self/fd/302"}
		got, _ := r.runWith(spec, runtime.Stdio{Files: files})
		if !strings.HasPrefix(got, "30") {
			r.Errorf("the program says %q", got)
		}
		if got := out.text(); got != "last" {
			r.Errorf("descriptor 302 gave %q", got)
		}
	},

	"arguments and environment of 1.5 MB": func(r *rig) {
		spec := Spec(r.id(), "/bin/sh", "-c", "echo $# ${#V7}")
		spec.Process.Args = append(spec.Process.Args, "sh")
		long := strings.Repeat("x", 100_000)
		for range 8 {
			spec.Process.Args = append(spec.Process.Args, long)
		}
		for i := range 7 {
			spec.Process.Env = append(spec.Process.Env, fmt.Sprintf("V%d=%s", i+1, long))
		}
		r.says(spec, "8 100000")
	},

	"arguments of 8 MB are an error that says so": func(r *rig) {
		spec := Spec(r.id(), "/bin/echo")
		for range 80 {
			spec.Process.Args = append(spec.Process.Args, strings.Repeat("x", 100_000))
		}
		c, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
		if either(r, tooLong, true, false) {
			r.must(err)
			pid := c.Pid()
			_ = c.Start(r.Context())
			if status := r.wait(pid); status == 0 {
				r.Error("the program ran")
			}
			r.must(c.Delete(r.Context(), runtime.DeleteOptions{Force: true}))
			return
		}
		if err == nil {
			r.end(c, c.Pid())
			r.Fatal("create succeeded")
		}
		r.hasText(err, "arguments")
	},

	"a long PATH": func(r *rig) {
		spec := Spec(r.id(), "sh", "-c", "echo found")
		spec.Process.Env = []string{"PATH=" + strings.Repeat("/none:", 2000) + "/bin"}
		r.says(spec, "found")
	},

	"300 devices": func(r *rig) {
		spec := r.spec("ls /dev/many | wc -l")
		for i := range 300 {
			spec.Linux.Devices = append(spec.Linux.Devices, specs.LinuxDevice{Path: fmt.Sprintf("/dev/many/d%d", i), Type: "c", Major: 1, Minor: 3})
		}
		r.says(spec, "300")
	},
}

var tooLong = differs("too long arguments", "arguments and environment beyond what execve(2) takes",
	"Create succeeds, the program never runs", "Create fails")
