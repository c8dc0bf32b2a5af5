package shim

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCreateLaunched = fault.New("shim.create.launched")
	faultCreateRecorded = fault.New("shim.create.recorded")
	faultDeleteEngine   = fault.New("shim.delete.engine")
	faultExecDropped    = fault.New("shim.exec.dropped")
	faultExecIntended   = fault.New("shim.exec.intended")
	faultExecHeld       = fault.New("shim.exec.held")
	faultExecKilled     = fault.New("shim.exec.killed")
	faultExecLaunched   = fault.New("shim.exec.launched")
	faultExecSignalled  = fault.New("shim.exec.signalled")
	faultExecStarted    = fault.New("shim.exec.started")
	faultLaunchCreated  = fault.New("shim.launch.created")
	faultUpdateChanged  = fault.New("shim.update.changed")
)
