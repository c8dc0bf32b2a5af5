package cli

import (
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Example is the configuration that the command spec writes, the same as runc's: a shell in all
// namespaces but user and time, with few rights.
func Example() *specs.Spec {
	caps := []string{"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	safe := []string{"nosuid", "noexec", "nodev"}
	with := func(more ...string) []string { return append(slices.Clone(safe), more...) }
	s := &specs.Spec{
		Version:  specs.Version,
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Hostname: "runc", // which scripts that edit the file may look for
		Process: &specs.Process{
			Terminal: true, Args: []string{"sh"}, Cwd: "/", NoNewPrivileges: true,
			Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1024, Soft: 1024}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{
				Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"},
			},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: with("mode=1777", "size=65536k")},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: safe},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: with("ro")},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: with("relatime", "ro")},
		},
		Linux: &specs.Linux{
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
				"/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
			Resources:     &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}}},
		},
	}
	kinds := []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace,
	}
	if cgroups.IsCgroup2UnifiedMode() {
		kinds = append(kinds, specs.CgroupNamespace)
	}
	for _, kind := range kinds {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	return s
}

// ForUser changes a configuration into one for the calling user, who has no rights: in a user
// namespace with this one id, on the host's network, without limits.
func ForUser(s *specs.Spec) {
	s.Linux.Namespaces = append(slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.NetworkNamespace
	}), specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: uint32(os.Geteuid()), Size: 1}}
	s.Linux.GIDMappings = []specs.LinuxIDMapping{{HostID: uint32(os.Getegid()), Size: 1}}
	s.Linux.Resources = nil
	for i := range s.Mounts {
		m := &s.Mounts[i]
		// No other id is mapped.
		m.Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool {
			return strings.HasPrefix(o, "gid=") || strings.HasPrefix(o, "uid=")
		})
		// sysfs shows a network namespace and can be mounted by its owner only.
		if m.Destination == "/sys" {
			*m = specs.Mount{Destination: "/sys", Type: "none", Source: "/sys", Options: []string{"rbind", "nosuid", "noexec", "nodev", "ro"}}
		}
	}
}
