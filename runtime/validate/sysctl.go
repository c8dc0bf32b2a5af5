package validate

import (
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Kernel parameters that belong to namespaces, namespaces(7). All others are the host's.
var ipcSysctls = []string{
	"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni",
	"kernel.shm_rmid_forced",
}

// SysctlPath is the file of a kernel parameter, below /proc/sys. As in sysctl(8), the first
// separator, a dot or a slash, is the one of the whole name, and the other a part of it.
func SysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		return name
	}
	return sysctlSwapper.Replace(name)
}

var sysctlSwapper = strings.NewReplacer(".", "/", "/", ".")

func checkSysctls(l *specs.Linux) error {
	for _, name := range slices.Sorted(maps.Keys(l.Sysctl)) {
		if hasZero(name) {
			return notSysctl(name)
		}
		if err := checkText("linux.sysctl."+name, l.Sysctl[name]); err != nil {
			return err
		}
		if err := Sysctl(l, name); err != nil {
			return err
		}
	}
	return nil
}

func notSysctl(name string) error {
	return invalid("linux.sysctl", "%q is no name of a kernel parameter, write it like net.ipv4.ip_forward", name)
}

// Sysctl refuses a kernel parameter that is not the container's own: setting it would change the
// host. It judges by the start of the path, so no component may be empty, "." or "..": the path of
// net.//.kernel.panic is net/../kernel/panic.
func Sysctl(l *specs.Linux, name string) error {
	path := SysctlPath(name)
	if !fs.ValidPath(path) {
		return notSysctl(name)
	}
	dotted := strings.ReplaceAll(path, "/", ".")
	var t specs.LinuxNamespaceType
	switch {
	case slices.Contains(ipcSysctls, dotted) || strings.HasPrefix(dotted, "fs.mqueue."):
		t = specs.IPCNamespace
	case dotted == "kernel.domainname":
		t = specs.UTSNamespace
	case strings.HasPrefix(dotted, "net."):
		t = specs.NetworkNamespace
	case strings.HasPrefix(dotted, "user."):
		t = specs.UserNamespace
	case dotted == "kernel.hostname":
		return invalid("linux.sysctl", "%s is the host name, set hostname instead", name)
	default:
		return invalid("linux.sysctl", "%s is not in a namespace, it would change the host; remove it", name)
	}
	i := slices.IndexFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == t })
	if i < 0 {
		return invalid("linux.sysctl", "%s needs a %s namespace, without one it would change the host; add it to linux.namespaces", name, t)
	}
	if t == specs.NetworkNamespace && isOwnNetwork(l.Namespaces[i].Path) {
		return invalid("linux.sysctl", "%s would change the host, whose network namespace %s is; remove it", name, l.Namespaces[i].Path)
	}
	return nil
}

func isOwnNetwork(path string) bool {
	if path == "" {
		return false
	}
	joined, err := os.Stat(path)
	if err != nil {
		return false // that is told elsewhere
	}
	own, err := os.Stat("/proc/self/ns/net")
	return err == nil && os.SameFile(joined, own)
}
