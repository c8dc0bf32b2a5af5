package ocispec

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// mounts puts the default file systems, the pod's files and the caller's mounts in the
// order in which they are to be made: a mount below another one comes after it.
func mounts(in Input) []specs.Mount {
	var out []specs.Mount
	for _, m := range slices.Concat(kernelMounts(in), podMounts(in)) {
		if !covers(in.Mounts, m) {
			out = append(out, m)
		}
	}
	for _, m := range in.Mounts {
		out = append(out, m.spec())
	}
	// Stable, so that of two mounts on the same place the later one still wins.
	slices.SortStableFunc(out, func(a, b specs.Mount) int {
		return cmp.Compare(depth(a.Destination), depth(b.Destination))
	})
	return out
}

// covers says whether one of the caller's mounts takes the place of ours: on the same
// place, or above it if what we put below would be put into the host's. That is so for
// /dev, where mount points would be made (but there is always a shm), and for a mount
// whose mounts propagate back: a pod's resolv.conf would come to lie over the host's.
func covers(callers []Mount, ours specs.Mount) bool {
	return slices.ContainsFunc(callers, func(m Mount) bool {
		at := path.Clean(m.Destination)
		return at == ours.Destination ||
			(at == "/dev" && ours.Destination != "/dev/shm" || m.Propagation == "rshared") && strings.HasPrefix(ours.Destination, at+"/")
	})
}

func depth(p string) int {
	if p = path.Clean(p); p == "/" {
		return 0
	}
	return strings.Count(p, "/")
}

// kernelMounts are the file systems that every container has.
func kernelMounts(in Input) []specs.Mount {
	sysfs := specs.Mount{
		Destination: "/sys", Type: "sysfs", Source: "sysfs",
		Options: []string{"nosuid", "noexec", "nodev", access(in.Privileged)},
	}
	cgroup := specs.Mount{
		Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
		Options: []string{"nosuid", "noexec", "nodev", "relatime", access(in.Privileged)},
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{
			Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"},
		},
		{
			Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
		},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		sysfs, cgroup,
	}
}

func access(writable bool) string {
	if writable {
		return "rw"
	}
	return "ro"
}

// podMounts are the files that all containers of the pod share.
func podMounts(in Input) []specs.Mount {
	var out []specs.Mount
	add := func(source, destination string, options ...string) {
		if source != "" {
			out = append(out, specs.Mount{
				Destination: destination, Type: "bind", Source: source,
				Options: append([]string{"rbind", "rprivate", "nosuid", "noexec", "nodev"}, options...),
			})
		}
	}
	file := access(!in.ReadonlyRoot)
	add(in.Files.Shm, "/dev/shm", "rw")
	add(in.Files.ResolvConf, "/etc/resolv.conf", file)
	add(in.Files.Hosts, "/etc/hosts", file)
	add(in.Files.Hostname, "/etc/hostname", file)
	return out
}

func (m Mount) spec() specs.Mount {
	o := []string{"rbind", cmp.Or(m.Propagation, "rprivate")}
	switch {
	case m.RecursiveReadonly:
		o = append(o, "rro")
	default:
		o = append(o, access(!m.Readonly))
	}
	return specs.Mount{
		Destination: m.Destination, Type: "bind", Source: m.Source, Options: append(o, m.Options...),
		UIDMappings: m.UIDs, GIDMappings: m.GIDs,
	}
}

// rootPropagation is the least propagation of the root under which all mounts get theirs.
func rootPropagation(ms []Mount) string {
	p := ""
	for _, m := range ms {
		switch m.Propagation {
		case "rshared":
			return "rshared"
		case "rslave":
			p = "rslave"
		}
	}
	return p
}

// DefaultMaskedPaths are what containers must not read, DefaultReadonlyPaths what they
// must not write, as peers have them.
func DefaultMaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
		"/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

// DefaultReadonlyPaths: see DefaultMaskedPaths.
func DefaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
