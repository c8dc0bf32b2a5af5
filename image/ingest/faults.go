package ingest

import "github.com/coracle-project/coracle/internal/fault"

// The fault point of this package: a place between two side effects, where tests inject errors,
// hangs and kills.
var faultPullLayer = fault.New("image.pull.layer")
