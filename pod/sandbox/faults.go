package sandbox

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCleanNamespaces  = fault.New("pod.clean.namespaces")
	faultCleanNetwork     = fault.New("pod.clean.network")
	faultInitRecorded     = fault.New("pod.init.recorded")
	faultInitStarted      = fault.New("pod.init.started")
	faultRemoveCleaned    = fault.New("pod.remove.cleaned")
	faultRemoveContainers = fault.New("pod.remove.containers")
	faultRemoveRecorded   = fault.New("pod.remove.recorded")
	faultRunNamespaces    = fault.New("pod.run.namespaces")
	faultRunNetwork       = fault.New("pod.run.network")
	faultRunReady         = fault.New("pod.run.ready")
	faultRunRecorded      = fault.New("pod.run.recorded")
	faultStopKilled       = fault.New("pod.stop.killed")
	faultStopRecorded     = fault.New("pod.stop.recorded")
	faultStopStopped      = fault.New("pod.stop.stopped")
)
