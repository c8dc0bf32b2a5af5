package base

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	FaultCreateBuilt   = fault.New("runtime.create.built")
	FaultCreateClaimed = fault.New("runtime.create.claimed")
	FaultStartReleased = fault.New("runtime.start.released")
	faultDeleteCgroups = fault.New("runtime.delete.cgroups")
	faultDeleteKilled  = fault.New("runtime.delete.killed")
	faultDeleteRenamed = fault.New("runtime.delete.renamed")
	faultKillFrozen    = fault.New("runtime.kill.frozen")
	faultKillNoted     = fault.New("runtime.kill.noted")
	faultKillSent      = fault.New("runtime.kill.sent")
)
