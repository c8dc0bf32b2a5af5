package runtimetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

var unifiedField = differs("unified field", "linux.resources.unified on cgroup version 1", "the error is the library's",
	"it names the field")

var resourceTests = map[string]func(*rig){
	"limits, stats, update": func(r *rig) {
		spec := Spec(r.id(), "/bin/sleep", "1000")
		limit, pids := int64(64<<20), int64(50)
		spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
		spec.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		s, err := c.Stats(r.Context())
		r.must(err)
		if s.MemoryLimit != uint64(limit) || s.PidsLimit != 50 || s.Pids == 0 || s.MemorySwap > s.MemoryUsage || s.CPUUsage == 0 ||
			s.MemoryUsage == 0 || s.Time.IsZero() {
			r.Errorf("stats are %+v", s)
		}
		limit = 128 << 20
		r.must(c.Update(r.Context(), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}))
		s, err = c.Stats(r.Context())
		r.must(err)
		if s.MemoryLimit != 128<<20 || s.PidsLimit != 50 {
			r.Errorf("stats after the update are %+v", s)
		}
		tooMuch := int64(-7)
		r.wantErr(c.Update(r.Context(), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &tooMuch}}), runtime.ErrInvalidSpec)
		r.must(c.Update(r.Context(), nil))
		r.end(c, pid)
		r.wantErr(c.Update(r.Context(), &specs.LinuxResources{}), runtime.ErrNotRunning)
	},

	"an update of the quota leaves the period, and the other way round": func(r *rig) {
		spec := Spec(r.id(), "/bin/sleep", "1000")
		quota, period := int64(20_000), uint64(50_000)
		spec.Linux.Resources.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		inForce := func() string {
			paths := c.(runtime.CgroupHolder).CgroupPaths()
			var all []byte
			for _, file := range []string{paths["cpu"] + "/cpu.cfs_quota_us", paths["cpu"] + "/cpu.cfs_period_us", paths[""] + "/cpu.max"} {
				if data, err := os.ReadFile(file); err == nil {
					all = append(all, data...)
				}
			}
			return strings.Join(strings.Fields(string(all)), " ")
		}
		for _, u := range []struct {
			cpu  specs.LinuxCPU
			want string
		}{
			{specs.LinuxCPU{Quota: ptr(int64(30_000))}, "30000 50000"},
			{specs.LinuxCPU{Period: ptr(uint64(60_000))}, "30000 60000"},
			{specs.LinuxCPU{Quota: ptr(int64(10_000)), Period: ptr(uint64(40_000))}, "10000 40000"},
		} {
			r.must(c.Update(r.Context(), &specs.LinuxResources{CPU: &u.cpu}))
			if got := inForce(); got != u.want {
				r.Errorf("quota and period are %q, want %q", got, u.want)
			}
		}
		r.end(c, pid)
	},

	"a device rule with access rwa is one with rw": func(r *rig) {
		spec := allCapabilities(r.spec("mknod /tmp/m c 1 11 && head -c1 /tmp/m >/dev/null 2>&1 && echo readable; true"))
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Type: "c", Major: ptr(int64(1)), Minor: ptr(int64(11)), Access: "rwa"})
		r.says(spec, "")
	},

	"linux.resources.unified is for version 2": func(r *rig) {
		spec := Spec(r.id(), "/bin/sleep", "1000")
		spec.Linux.Resources.Unified = map[string]string{"memory.high": "67108864"}
		if !cgroups.IsCgroup2UnifiedMode() {
			r.refused(spec, either(r, unifiedField, "unified", `linux.resources.unified ["memory.high"] needs cgroup version 2`))
			return
		}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		file := c.(runtime.CgroupHolder).CgroupPaths()[""] + "/memory.high"
		if got, err := os.ReadFile(file); err != nil || string(got) != "67108864\n" {
			r.Errorf("memory.high is %q, %v", got, err)
		}
		r.must(c.Start(r.Context()))
		r.must(c.Update(r.Context(), &specs.LinuxResources{Unified: map[string]string{"memory.high": "max"}}))
		if got, err := os.ReadFile(file); err != nil || string(got) != "max\n" {
			r.Errorf("memory.high is %q after the update, %v", got, err)
		}
		r.end(c, pid)
	},

	"an update with the spec's resources leaves the devices usable": func(r *rig) {
		out := r.output()
		// containerd sends all of linux.resources, device rules included.
		spec := r.spec("read go; echo x > /dev/null && echo usable")
		in, write, err := os.Pipe()
		r.must(err)
		c := r.create(spec, runtime.Stdio{Stdin: in, Stdout: out.write})
		r.must(in.Close())
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		limit := int64(128 << 20)
		spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
		r.must(c.Update(r.Context(), spec.Linux.Resources))
		r.must(write.Close())
		r.wait(pid)
		if got := out.text(); got != "usable" {
			r.Errorf("got %q", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	// Regression: "unable to freeze", as on any machine whose processors are busy. On v1 a process has
	// to run before it is frozen.
	"pause of a container that hardly runs": func(r *rig) {
		spin := func(shares uint64) (runtime.Container, int) {
			out := r.output()
			spec := r.spec("echo ready; while :; do :; done")
			spec.Linux.Resources.CPU = &specs.LinuxCPU{Cpus: "0", Shares: &shares}
			c := r.create(spec, runtime.Stdio{Stdout: out.write})
			pid := c.Pid()
			r.must(c.Start(r.Context()))
			out.line()
			return c, pid
		}
		c, pid := spin(2)
		hog, hogPid := spin(262144) // leaves it next to nothing
		if !cgroups.IsCgroup2UnifiedMode() {
			short, cancel := context.WithTimeout(r.Context(), time.Millisecond)
			defer cancel()
			r.wantErr(c.Pause(short), context.DeadlineExceeded)
			r.status(c, specs.StateRunning)
		}
		r.must(hog.Update(r.Context(), &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: ptr(uint64(1024))}}))
		r.must(c.Pause(r.Context()))
		r.status(c, "paused")
		r.end(hog, hogPid)
		r.end(c, pid)
	},

	"pause and resume": func(r *rig) {
		c, pid := r.running()
		r.must(c.Pause(r.Context()))
		r.status(c, "paused")
		r.must(c.Pause(r.Context()))
		r.must(c.Resume(r.Context()))
		r.status(c, specs.StateRunning)
		r.must(c.Resume(r.Context()))
		r.end(c, pid)
		r.wantErr(c.Pause(r.Context()), runtime.ErrNotRunning)
		r.wantErr(c.Resume(r.Context()), runtime.ErrNotRunning)
	},

	"user, groups, rlimits, umask, sysctl, oom score, capabilities": func(r *rig) {
		out := r.output()
		mask := uint32(0o27)
		score := 500
		spec := r.spec("id -u; id -g; id -G; ulimit -n; umask; cat /proc/sys/net/ipv4/ip_forward /proc/self/oom_score_adj; " +
			"while read k v; do test $k = CapEff: && echo $v; test $k = NoNewPrivs: && echo $v; done < /proc/self/status; true")
		spec.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{7, 8}, Umask: &mask}
		spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}}
		spec.Process.OOMScoreAdj = &score
		spec.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1"}
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		want := "1000\n1001\n1001 7 8\n100\n0027\n1\n500\n0000000000000000\n1"
		if got := out.text(); got != want {
			r.Errorf("got %q, want %q", got, want)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"an oom score that may not be lowered is no failure": func(r *rig) {
		spec := r.spec("true")
		score := -999
		spec.Process.OOMScoreAdj = &score
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		if got := r.wait(pid); got != 0 {
			r.Errorf("exit status %d", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"masked and read-only paths, read-only root": func(r *rig) {
		out := r.output()
		spec := r.spec("cat /secret; test -s /secret || echo masked; touch /x 2>/dev/null || echo read-only")
		r.must(os.WriteFile(filepath.Join(r.bundle, "rootfs", "secret"), []byte("password\n"), 0o644))
		spec.Linux.MaskedPaths = append(spec.Linux.MaskedPaths, "/secret")
		spec.Root.Readonly = true
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got := out.text(); got != "masked\nread-only" {
			r.Errorf("got %q", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"seccomp": func(r *rig) {
		out := r.output()
		spec := r.spec("touch /tmp/x; chmod 600 /tmp/x 2>/dev/null || echo refused")
		spec.Linux.Seccomp = &specs.LinuxSeccomp{
			DefaultAction: specs.ActAllow,
			Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64},
			Syscalls:      []specs.LinuxSyscall{{Names: []string{"chmod", "fchmodat", "fchmodat2"}, Action: specs.ActErrno}},
		}
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got := out.text(); got != "refused" {
			r.Errorf("got %q", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"joined namespaces": func(r *rig) {
		first, pid := r.running()
		out := r.output()
		spec := r.spec("hostname; echo pid $$")
		spec.Hostname = ""
		for i := range spec.Linux.Namespaces {
			ns := &spec.Linux.Namespaces[i]
			switch ns.Type {
			case specs.UTSNamespace, specs.IPCNamespace, specs.PIDNamespace:
				ns.Path = fmt.Sprintf("/proc/%d/ns/%s", pid, ns.Type)
			case specs.NetworkNamespace:
				ns.Path = fmt.Sprintf("/proc/%d/ns/net", pid)
			}
		}
		second := r.create(spec, runtime.Stdio{Stdout: out.write})
		secondPid := second.Pid()
		r.must(second.Start(r.Context()))
		r.wait(secondPid)
		if got := out.text(); got == "boat\npid 1" || got[:4] != "boat" {
			r.Errorf("got %q, want the first container's host name and a pid above 1", got)
		}
		r.must(second.Delete(r.Context(), runtime.DeleteOptions{}))
		r.end(first, pid)
	},

	"bind mounts relative to the bundle": func(r *rig) {
		out := r.output()
		r.must(os.WriteFile(filepath.Join(r.bundle, "note"), []byte("from the bundle\n"), 0o644))
		spec := r.spec("cat /note /tmp/note")
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: "/note", Source: "note", Options: []string{"bind", "ro"}},
			specs.Mount{Destination: "tmp/note", Source: "note", Options: []string{"bind", "ro"}},
		)
		c := r.create(spec, runtime.Stdio{Stdout: out.write})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		if got := out.text(); got != "from the bundle\nfrom the bundle" {
			r.Errorf("got %q", got)
		}
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},
}
