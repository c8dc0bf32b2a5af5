package image

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultAddIndexed    = fault.New("image.add.indexed")
	faultAddSynced     = fault.New("image.add.synced")
	faultLazyUnpacked  = fault.New("image.lazy.unpacked")
	faultLazyWhole     = fault.New("image.lazy.whole")
	faultPullIndexed   = fault.New("image.pull.indexed")
	faultPullResolved  = fault.New("image.pull.resolved")
	faultPullSynced    = fault.New("image.pull.synced")
	faultTagIndexed    = fault.New("image.tag.indexed")
	faultVerifyDropped = fault.New("image.verify.dropped")
	faultVerifyRemoved = fault.New("image.verify.removed")
)
