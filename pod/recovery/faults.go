package recovery

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultUnmanagedEnded     = fault.New("pod.unmanaged.ended")
	faultUnmanagedKilled    = fault.New("pod.unmanaged.killed")
	faultUnmanagedNetwork   = fault.New("pod.unmanaged.network")
	faultUnmanagedSnapshots = fault.New("pod.unmanaged.snapshots")
)
