package shimv2

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultShimCreated = fault.New("runtime.shim.created")
	faultShimDeleted = fault.New("runtime.shim.deleted")
	faultShimStart   = fault.New("runtime.shim.start")
	faultShimStarted = fault.New("runtime.shim.started")
)
