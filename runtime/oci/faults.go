package oci

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultOciCreate  = fault.New("runtime.oci.create")
	faultOciCreated = fault.New("runtime.oci.created")
	faultOciDeleted = fault.New("runtime.oci.deleted")
	faultOciStarted = fault.New("runtime.oci.started")
)
