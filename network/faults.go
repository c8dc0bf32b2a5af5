package network

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCniAdded         = fault.New("network.cni.added")
	faultCniRecorded      = fault.New("network.cni.recorded")
	faultCniRemoved       = fault.New("network.cni.removed")
	faultCniRemoving      = fault.New("network.cni.removing")
	faultReapUnlinked     = fault.New("network.reap.unlinked")
	faultSetupAddressed   = fault.New("network.setup.addressed")
	faultSetupCreated     = fault.New("network.setup.created")
	faultSetupLinked      = fault.New("network.setup.linked")
	faultSetupMapped      = fault.New("network.setup.mapped")
	faultSetupRouted      = fault.New("network.setup.routed")
	faultSetupRecorded    = fault.New("network.setup.recorded")
	faultTeardownRecorded = fault.New("network.teardown.recorded")
	faultTeardownUnmapped = fault.New("network.teardown.unmapped")
)
