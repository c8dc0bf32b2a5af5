package snapshot

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultPrepareMade     = fault.New("snapshot.prepare.made")
	faultPrepareTargeted = fault.New("snapshot.prepare.targeted")
	faultPrepareMounted  = fault.New("snapshot.prepare.mounted")
	faultPrepareRecorded = fault.New("snapshot.prepare.recorded")
	faultRemoveMoved     = fault.New("snapshot.remove.moved")
	faultRemoveDiscarded = fault.New("snapshot.remove.discarded")
	faultRemoveUnmounted = fault.New("snapshot.remove.unmounted")
)
