// Package cgroupmode tells which cgroup hierarchies a host has mounted (cgroups(7)).
package cgroupmode

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Unified says whether the host has only cgroup v2. Otherwise v1 has the controllers, and a v2
// hierarchy next to it may have none. The answer is kept, because a host keeps its hierarchies
// until it reboots. The OCI engines ask the library that makes their cgroups, in the same way.
var Unified = sync.OnceValue(func() bool {
	var st unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
})
