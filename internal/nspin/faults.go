package nspin

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCreateConfigured = fault.New("nspin.create.configured")
	faultCreatePinned     = fault.New("nspin.create.pinned")
	faultRemoveUnpinned   = fault.New("nspin.remove.unpinned")
)
