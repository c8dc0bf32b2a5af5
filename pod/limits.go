package pod

import (
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/coracle-project/coracle/pod/ocispec"
)

// hostLimits says which limits of a container this host can keep.
type hostLimits struct{ hugepages, swap bool }

// limitsOfHost looks at the cgroup hierarchies once: they are the same until the next boot.
var limitsOfHost = sync.OnceValue(func() hostLimits {
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	if cgroupV2() {
		// Without swap accounting libcontainer takes "no swap" without a word.
		controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		return hostLimits{hugepages: slices.Contains(strings.Fields(string(controllers)), "hugetlb"), swap: true}
	}
	return hostLimits{
		hugepages: exists("/sys/fs/cgroup/hugetlb/cgroup.procs"),
		swap:      exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
	}
})

// on is r as it can be kept on a host, as peers do it. The kubelet gives a limit for every
// size of huge pages that the kernel knows, also where nothing can limit them. And a
// memory limit is one for memory and swap together unless another is given: else what
// the limit should stop would go on in the swap space.
func (r Resources) on(h hostLimits) ocispec.Resources {
	if !h.hugepages {
		r.Hugepages = nil
	}
	switch {
	case !h.swap:
		r.MemorySwapLimit = 0
	case r.MemorySwapLimit == 0:
		r.MemorySwapLimit = r.MemoryLimit
	}
	return ocispec.Resources(r)
}

// change is what an update of r sends to the runtime: what is set in c, and of limits
// that the kernel takes in pairs both. r has c in it already.
func (r Resources) change(c Resources) Resources {
	if c.MemoryLimit != 0 || c.MemorySwapLimit != 0 {
		c.MemoryLimit, c.MemorySwapLimit = r.MemoryLimit, r.MemorySwapLimit
	}
	if c.CPUQuota != 0 || c.CPUPeriod != 0 {
		c.CPUQuota, c.CPUPeriod = r.CPUQuota, r.CPUPeriod
	}
	return c
}
