package snapshot

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects where tests fail, hang or kill.
var (
	faultLayerPublished  = fault.New("snapshot.layer.published")
	faultLayerRecorded   = fault.New("snapshot.layer.recorded")
	faultLayerRemoved    = fault.New("snapshot.layer.removed")
	faultPrepareMounted  = fault.New("snapshot.prepare.mounted")
	faultPrepareRecorded = fault.New("snapshot.prepare.recorded")
	faultRemoveDiscarded = fault.New("snapshot.remove.discarded")
	faultRemoveUnmounted = fault.New("snapshot.remove.unmounted")
)
