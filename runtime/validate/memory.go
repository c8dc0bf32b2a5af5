package validate

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var (
	memoryModes = []specs.MemoryPolicyModeType{
		specs.MpolDefault, specs.MpolBind, specs.MpolInterleave, specs.MpolWeightedInterleave, specs.MpolPreferred,
		specs.MpolPreferredMany, specs.MpolLocal,
	}
	memoryFlags = []specs.MemoryPolicyFlagType{specs.MpolFNumaBalancing, specs.MpolFRelativeNodes, specs.MpolFStaticNodes}
)

// checkMemoryPolicy checks which memory nodes the container takes memory from,
// set_mempolicy(2).
func checkMemoryPolicy(p *specs.LinuxMemoryPolicy) error {
	if p == nil {
		return nil
	}
	const field = "linux.memoryPolicy."
	if !slices.Contains(memoryModes, p.Mode) {
		return invalid(field+"mode", "%q is no mode, use one of %v", p.Mode, memoryModes)
	}
	for i, f := range p.Flags {
		if !slices.Contains(memoryFlags, f) {
			return invalid(fmt.Sprintf("%sflags[%d]", field, i), "%q is no flag, use one of %v", f, memoryFlags)
		}
	}
	switch none := p.Mode == specs.MpolDefault || p.Mode == specs.MpolLocal; {
	case !isList(p.Nodes):
		return invalid(field+"nodes", "%q is no list of memory nodes, write it like 0-1", p.Nodes)
	case none && p.Nodes != "":
		return invalid(field+"nodes", "%q is of no use with %s, which has no nodes", p.Nodes, p.Mode)
	case !none && p.Mode != specs.MpolPreferred && p.Nodes == "":
		return invalid(field+"nodes", "is missing, %s needs one node at least", p.Mode)
	}
	return nil
}
