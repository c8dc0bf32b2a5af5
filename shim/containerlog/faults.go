package containerlog

import (
	"context"

	"github.com/coracle-project/coracle/internal/fault"
)

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultLogOpened   = fault.New("shim.log.opened")
	faultLogPruned   = fault.New("shim.log.pruned")
	faultLogRenamed  = fault.New("shim.log.renamed")
	faultLogReopened = fault.New("shim.log.reopened")
)

// faultAt is a fault point of work that has no request.
func faultAt(p fault.Point) error { return p.At(context.Background()) }
