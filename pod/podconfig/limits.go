package podconfig

import (
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/internal/cgroupmode"
	"github.com/coracle-project/coracle/pod/ocispec"
)

// HostLimits says which limits of a container this host can keep.
type HostLimits struct{ Hugepages, Swap bool }

// LimitsOfHost looks at the cgroup hierarchies once: they are the same until the next boot.
var LimitsOfHost = sync.OnceValue(func() HostLimits {
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	if cgroupmode.Unified() {
		// Without swap accounting libcontainer takes "no swap" without a word.
		controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return HostLimits{Hugepages: slices.Contains(strings.Fields(string(controllers)), "hugetlb"), Swap: true}
	}
	return HostLimits{
		Hugepages: exists("/sys/fs/cgroup/hugetlb/cgroup.procs"),
		Swap:      exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
	}
})

// On is r as it can be kept on a host, as peers do it. The kubelet gives a limit for every
// size of huge pages that the kernel knows, also where nothing can limit them. And a
// memory limit is one for memory and swap together unless another is given: else what
// the limit should stop would go on in the swap space.
func (r Resources) On(h HostLimits) ocispec.Resources {
	if !h.Hugepages {
		r.Hugepages = nil
	}
	switch {
	case !h.Swap:
		r.MemorySwapLimit = 0
	case r.MemorySwapLimit == 0:
		r.MemorySwapLimit = r.MemoryLimit
	}
	return ocispec.Resources(r)
}

// Change is what an update of r sends to the runtime: what is set in c, and of limits
// that the kernel takes in pairs both. r has c in it already.
func (r Resources) Change(c Resources) Resources {
	if c.MemoryLimit != 0 || c.MemorySwapLimit != 0 {
		c.MemoryLimit, c.MemorySwapLimit = r.MemoryLimit, r.MemorySwapLimit
	}
	if c.CPUQuota != 0 || c.CPUPeriod != 0 {
		c.CPUQuota, c.CPUPeriod = r.CPUQuota, r.CPUPeriod
	}
	return c
}

// With is r with the fields that change sets.
func (r Resources) With(change Resources) Resources {
	set := func(to *int64, v int64) {
		if v != 0 {
			*to = v
		}
	}
	set(&r.CPUPeriod, change.CPUPeriod)
	set(&r.CPUQuota, change.CPUQuota)
	set(&r.CPUShares, change.CPUShares)
	set(&r.MemoryLimit, change.MemoryLimit)
	set(&r.MemorySwapLimit, change.MemorySwapLimit)
	if change.CpusetCPUs != "" {
		r.CpusetCPUs = change.CpusetCPUs
	}
	if change.CpusetMems != "" {
		r.CpusetMems = change.CpusetMems
	}
	r.Hugepages = merged(r.Hugepages, change.Hugepages)
	r.Unified = merged(r.Unified, change.Unified)
	return r
}

// merged is a new map with a's entries and b's, which win.
func merged[V any](a, b map[string]V) map[string]V {
	if len(b) == 0 {
		return a
	}
	out := make(map[string]V, len(a)+len(b))
	for k, v := range a {
		out[k] = v
	}
	for k, v := range b {
		out[k] = v
	}
	return out
}
