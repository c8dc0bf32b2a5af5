package engine

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCreateCgroup = fault.New("runtime.create.cgroup")
	faultCreateCloned = fault.New("runtime.create.cloned")
	faultCreateGated  = fault.New("runtime.create.gated")
)
