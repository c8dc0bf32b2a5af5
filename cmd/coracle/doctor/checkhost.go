package doctor

import (
	"fmt"
	"slices"
	"strings"
)

func checkUser(f *Facts) []Finding {
	if f.UID == 0 {
		return nil
	}
	return one("user", Warning, "not run as root: what only root may see is not checked", "sudo coracle doctor")
}

// Versions of Linux that make a difference.
const (
	oldestMajor, oldestMinor = 5, 10 // README.md, Requirements
	exitMajor, exitMinor     = 6, 15 // PIDFD_GET_INFO tells exit codes
)

func checkKernel(f *Facts) []Finding {
	var major, minor int
	if _, err := fmt.Sscanf(f.Kernel.Release, "%d.%d", &major, &minor); err != nil {
		return one("kernel", Warning, fmt.Sprintf("Linux %q: no version can be read from that", f.Kernel.Release), "")
	}
	older := func(a, b int) bool { return major < a || major == a && minor < b }
	switch {
	case older(oldestMajor, oldestMinor):
		return one("kernel", Error, fmt.Sprintf("Linux %s is older than %d.%d", f.Kernel.Release, oldestMajor, oldestMinor),
			"install a newer kernel")
	case older(exitMajor, exitMinor):
		return one("kernel", OK,
			fmt.Sprintf("Linux %s; before %d.%d, a container that ends after its shim and the keeper that started this have died is reported with exit code 255",
				f.Kernel.Release, exitMajor, exitMinor), "")
	}
	return one("kernel", OK, "Linux "+f.Kernel.Release, "")
}

func checkModules(f *Facts) []Finding {
	var all []Finding
	if !f.Kernel.Overlay {
		all = append(all, Finding{
			"overlayfs", Error, "the kernel has no overlayfs, and no module of it",
			"install the distribution's full kernel (CONFIG_OVERLAY_FS), or set snapshot.driver = \"native\"",
		})
	}
	if !f.Kernel.NFTables && f.CNI.File == "" {
		all = append(all, Finding{
			"nftables", Error, "the kernel has no nftables, which the built-in network needs",
			"modprobe nf_tables; or configure CNI plugins in " + f.CNI.Dir,
		})
	}
	if !f.Kernel.Seccomp {
		all = append(all, Finding{
			"seccomp", Error, "the kernel has no seccomp filters, which confine containers",
			"boot a kernel with CONFIG_SECCOMP_FILTER",
		})
	}
	if len(all) > 0 {
		return all
	}
	if !f.Kernel.WireGuard {
		return one("features", OK, "overlayfs, nftables and seccomp are there, WireGuard is not: no cluster with --pod-network wireguard", "")
	}
	return one("features", OK, "overlayfs, nftables, seccomp and WireGuard are there", "")
}

func checkNamespaces(f *Facts) []Finding {
	var missing []string
	for _, kind := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if !slices.Contains(f.Kernel.Namespaces, kind) {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return one("namespaces", Error, "the kernel has no namespaces of kind "+strings.Join(missing, ", "),
			"boot a kernel with CONFIG_NAMESPACES and its kinds")
	}
	if !slices.Contains(f.Kernel.Namespaces, "user") || f.Limits.UserNamespaces == 0 {
		return one("namespaces", Warning, "user namespaces are off: pods with hostUsers: false cannot start",
			"sysctl -w user.max_user_namespaces=15000, and the same in /etc/sysctl.d")
	}
	return one("namespaces", OK, "all kinds are there", "")
}

func checkCgroups(f *Facts) []Finding {
	c := &f.Cgroups
	if c.Version == 0 {
		return one("cgroups", Error, "nothing is mounted on /sys/fs/cgroup", "mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	}
	var all []Finding
	lacks := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(c.Controllers, n) })
	}
	if lacks("memory") {
		all = append(all, Finding{
			"cgroups", Error, "there is no memory controller: limits of memory cannot be kept",
			"boot with cgroup_enable=memory on the kernel's command line",
		})
	}
	for _, other := range [][]string{{"cpu"}, {"cpuset"}, {"pids"}, {"io", "blkio"}} {
		if lacks(other...) {
			all = append(all, Finding{
				"cgroups", Warning, "there is no " + other[0] + " controller: its limits cannot be kept",
				"boot a kernel that has it, without cgroup_disable=" + other[len(other)-1],
			})
		}
	}
	switch {
	case c.Driver == "systemd" && !c.Systemd:
		all = append(all, Finding{
			"cgroups", Error, "cgroup.driver is systemd, but systemd does not run this machine",
			`set cgroup.driver = "cgroupfs", and the kubelet's cgroupDriver likewise`,
		})
	case c.Driver != "systemd" && c.Systemd && c.Version == 2:
		all = append(all, Finding{
			"cgroups", Warning, "systemd owns the cgroups, but cgroup.driver is cgroupfs: two writers of one tree",
			`set cgroup.driver = "systemd"`,
		})
	}
	if len(all) == 0 {
		return one("cgroups", OK, fmt.Sprintf("version %d with %s", c.Version, strings.Join(c.Controllers, ", ")), "")
	}
	return all
}

// fewInotify is the kernel's default. Each follower of a log takes one.
const fewInotify = 128

func checkLimits(f *Facts) []Finding {
	if n := f.Limits.InotifyInstances; n < fewInotify {
		return one("limits", Warning, fmt.Sprintf("fs.inotify.max_user_instances is %d: logs cannot be followed by many", n),
			"sysctl -w fs.inotify.max_user_instances=1024, and the same in /etc/sysctl.d")
	}
	return one("limits", OK, fmt.Sprintf("%d inotify instances for each user", f.Limits.InotifyInstances), "")
}

func checkSecurity(f *Facts) []Finding {
	if f.Security.AppArmor && !f.Security.AppArmorParser {
		return one("apparmor", Warning, "AppArmor is on, but there is no apparmor_parser: containers run without a profile",
			"install the package apparmor")
	}
	return nil
}
