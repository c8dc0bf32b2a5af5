package layer

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultLayerPublished = fault.New("snapshot.layer.published")
	faultLayerRecorded  = fault.New("snapshot.layer.recorded")
	faultLayerSealed    = fault.New("snapshot.layer.sealed")
	faultLayerStaged    = fault.New("snapshot.layer.staged")
	faultLayerRemoved   = fault.New("snapshot.layer.removed")
)
