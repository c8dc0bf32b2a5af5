package nspin

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ipcSysctls are the names under kernel. that belong to the IPC namespace
// (ipc_namespaces(7)).
var ipcSysctls = map[string]bool{
	"kernel.msgmax":          true,
	"kernel.msgmnb":          true,
	"kernel.msgmni":          true,
	"kernel.sem":             true,
	"kernel.shmall":          true,
	"kernel.shmmax":          true,
	"kernel.shmmni":          true,
	"kernel.shm_rmid_forced": true,
}

// sysctlWrite is one checked sysctl; path is below /proc/sys.
type sysctlWrite struct {
	name, path, value string
}

// sysctlWrites checks the spec's sysctls and returns them in the order of their
// names.
func (s Spec) sysctlWrites() ([]sysctlWrite, error) {
	if len(s.Sysctls) == 0 {
		return nil, nil
	}
	writes := make([]sysctlWrite, 0, len(s.Sysctls))
	for _, name := range slices.Sorted(maps.Keys(s.Sysctls)) {
		parts, err := sysctlParts(name)
		if err != nil {
			return nil, err
		}
		if err := s.owns(name, parts); err != nil {
			return nil, err
		}
		writes = append(writes, sysctlWrite{name: name, path: strings.Join(parts, "/"), value: s.Sysctls[name]})
	}
	return writes, nil
}

// sysctlParts splits a name as sysctl(8) does: the first of '.' and '/'
// separates the parts. Within a part, the other one is replaced by it, so that
// net.ipv4.conf.eth0/100.forwarding names the interface eth0.100.
func sysctlParts(name string) ([]string, error) {
	dotted := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		dotted = swapSeparators(name)
	}
	parts := strings.Split(dotted, ".")
	for i, p := range parts {
		p = strings.ReplaceAll(p, "/", ".")
		if p == "" || p == "." || p == ".." || strings.ContainsRune(p, 0) {
			return nil, fmt.Errorf("%w: sysctl %q: malformed name", ErrInvalid, name)
		}
		parts[i] = p
	}
	return parts, nil
}

func swapSeparators(s string) string {
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, s)
}

// owns says why the pod may not set the sysctl, if so: writing it must change
// nothing outside the pod's own namespaces.
func (s Spec) owns(name string, parts []string) error {
	dotted := strings.Join(parts, ".")
	var owned bool
	var kind string
	switch {
	case parts[0] == "net" && len(parts) > 1:
		owned, kind = s.Net, "network"
	case ipcSysctls[dotted], len(parts) == 3 && parts[0] == "fs" && parts[1] == "mqueue":
		owned, kind = s.IPC, "IPC"
	case dotted == "kernel.domainname":
		owned, kind = s.UTS, "UTS"
	default:
		return fmt.Errorf("%w: sysctl %q is not namespaced; it can only be set on the node", ErrInvalid, name)
	}
	if !owned {
		return fmt.Errorf("%w: sysctl %q cannot be set: the pod uses the host's %s namespace", ErrInvalid, name, kind)
	}
	return nil
}

// ipc says whether the sysctl belongs to an IPC namespace.
func (w sysctlWrite) ipc() bool {
	return !strings.HasPrefix(w.path, "net/") && w.path != "kernel/domainname"
}

// do writes the sysctl in dir, which is a /proc/sys. A file there acts on the namespaces of the
// thread that opens it, so it must run on the thread that has unshared.
func (w sysctlWrite) do(dir string) error {
	fd, err := unix.Open(dir+"/"+w.path, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR:
		return fmt.Errorf("%w: sysctl %q: the kernel does not have it in this namespace", ErrInvalid, w.name)
	default:
		return fmt.Errorf("sysctl %q: %w", w.name, &os.PathError{Op: "open", Path: "/proc/sys/" + w.path, Err: err})
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(w.value))
	switch err {
	case nil:
		return nil
	case unix.EINVAL, unix.ERANGE, unix.EPERM, unix.EACCES:
		return fmt.Errorf("%w: sysctl %q: the kernel refuses the value %q: %w", ErrInvalid, w.name, w.value, err)
	default:
		return fmt.Errorf("sysctl %q: write %q: %w", w.name, w.value, err)
	}
}
