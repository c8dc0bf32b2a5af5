package plan

import (
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// MemoryPolicy sets which NUMA nodes memory comes from, set_mempolicy(2).
type MemoryPolicy struct {
	Mode  string `json:"mode"`
	Nodes string `json:"nodes,omitempty"`
	mode  int
	mask  []byte // nil: no nodes
}

func (o MemoryPolicy) String() string {
	return strings.TrimSpace("set memory policy " + o.Mode + " " + o.Nodes)
}

func (o MemoryPolicy) lower(a *asm) {
	if o.mask == nil {
		a.call(unix.SYS_SET_MEMPOLICY, o.mode, 0, 0)
		return
	}
	// The kernel takes one bit less than it is told.
	a.call(unix.SYS_SET_MEMPOLICY, o.mode, a.bytes(o.mask, 8), 8*len(o.mask)+1)
}

func (o MemoryPolicy) explain(errno unix.Errno) error {
	if errno != unix.EINVAL {
		return nil
	}
	return fmt.Errorf(
		"%s: %w: see whether these nodes are among the container's (linux.resources.cpu.mems) and this kernel knows mode and flags of "+
			"linux.memoryPolicy", o, errno,
	)
}

var memoryModes = map[specs.MemoryPolicyModeType]int{
	specs.MpolDefault: unix.MPOL_DEFAULT, specs.MpolBind: unix.MPOL_BIND, specs.MpolInterleave: unix.MPOL_INTERLEAVE,
	specs.MpolWeightedInterleave: unix.MPOL_WEIGHTED_INTERLEAVE, specs.MpolPreferred: unix.MPOL_PREFERRED,
	specs.MpolPreferredMany: unix.MPOL_PREFERRED_MANY, specs.MpolLocal: unix.MPOL_LOCAL,
}

var memoryFlags = map[specs.MemoryPolicyFlagType]int{
	specs.MpolFNumaBalancing: unix.MPOL_F_NUMA_BALANCING, specs.MpolFRelativeNodes: unix.MPOL_F_RELATIVE_NODES,
	specs.MpolFStaticNodes: unix.MPOL_F_STATIC_NODES,
}

// memoryPolicy is linux.memoryPolicy (config-linux.md#memory-policy), which further processes
// of the container have, too.
func memoryPolicy(p *specs.LinuxMemoryPolicy) (MemoryPolicy, error) {
	const most = 1 << 10 // MAX_NUMNODES of any kernel
	mode, known := memoryModes[p.Mode]
	if !known {
		return MemoryPolicy{}, fmt.Errorf("linux.memoryPolicy.mode %q is unknown", p.Mode)
	}
	out := MemoryPolicy{Mode: string(p.Mode), Nodes: p.Nodes, mode: mode}
	for _, f := range p.Flags {
		flag, known := memoryFlags[f]
		if !known {
			return MemoryPolicy{}, fmt.Errorf("linux.memoryPolicy.flags: %q is unknown", f)
		}
		out.mode |= flag
		out.Mode += "|" + string(f)
	}
	if p.Nodes == "" {
		return out, nil
	}
	mask, ok := bitmask(p.Nodes, most)
	if !ok {
		return MemoryPolicy{}, fmt.Errorf("linux.memoryPolicy.nodes: %q is no list of memory nodes, write it like 0-1", p.Nodes)
	}
	out.mask = mask
	return out, nil
}
