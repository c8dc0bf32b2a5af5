package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// delegate is the user, as the host has it, whom the container's cgroup is given to, so that it
// can divide it: the one that its program runs as, if it is in a user namespace and has its own
// cgroup mounted writable (config-linux.md#cgroup-ownership). -1 is no one.
func delegate(spec *specs.Spec) int {
	l := spec.Linux
	isNew := func(t specs.LinuxNamespaceType) bool {
		return slices.Contains(l.Namespaces, specs.LinuxNamespace{Type: t})
	}
	writable := func(m specs.Mount) bool { return m.Type == "cgroup" && !slices.Contains(m.Options, "ro") }
	if !isNew(specs.CgroupNamespace) || !isNew(specs.UserNamespace) || !slices.ContainsFunc(spec.Mounts, writable) {
		return -1
	}
	uid := spec.Process.User.UID
	for _, m := range l.UIDMappings {
		if uid >= m.ContainerID && uid-m.ContainerID < m.Size {
			return int(m.HostID + uid - m.ContainerID)
		}
	}
	return -1
}

// giveCgroup gives a user a cgroup of the unified hierarchy, but not its limits.
func giveCgroup(dir string, uid int) error {
	names, err := os.ReadFile("/sys/kernel/cgroup/delegate")
	if err != nil {
		names = []byte("cgroup.procs cgroup.threads cgroup.subtree_control")
	}
	for _, name := range append([]string{""}, strings.Fields(string(names))...) {
		err := os.Chown(filepath.Join(dir, name), uid, -1)
		if err != nil && !(name != "" && errors.Is(err, os.ErrNotExist)) { // of a controller that is not enabled
			return fmt.Errorf("delegate the cgroup: %w", err)
		}
	}
	return nil
}
