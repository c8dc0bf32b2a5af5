package pod

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultCheckpointImages        = fault.New("pod.checkpoint.images")
	faultCleanNamespaces         = fault.New("pod.clean.namespaces")
	faultCleanNetwork            = fault.New("pod.clean.network")
	faultRemoveContainerEnded    = fault.New("pod.remove.container.ended")
	faultCreateRecorded          = fault.New("pod.create.recorded")
	faultCreateSnapshot          = fault.New("pod.create.snapshot")
	faultCreateVolume            = fault.New("pod.create.volume")
	faultInitRecorded            = fault.New("pod.init.recorded")
	faultInitStarted             = fault.New("pod.init.started")
	faultRemoveCleaned           = fault.New("pod.remove.cleaned")
	faultRemoveContainerRecorded = fault.New("pod.remove.container.recorded")
	faultRemoveContainerSnapshot = fault.New("pod.remove.container.snapshot")
	faultRemoveContainers        = fault.New("pod.remove.containers")
	faultRemoveRecorded          = fault.New("pod.remove.recorded")
	faultRunNamespaces           = fault.New("pod.run.namespaces")
	faultRunNetwork              = fault.New("pod.run.network")
	faultRunReady                = fault.New("pod.run.ready")
	faultRunRecorded             = fault.New("pod.run.recorded")
	faultStartAgain              = fault.New("pod.start.again")
	faultStartCreated            = fault.New("pod.start.created")
	faultStartRecorded           = fault.New("pod.start.recorded")
	faultStartStarted            = fault.New("pod.start.started")
	faultStopContainerKill       = fault.New("pod.stop.container.kill")
	faultStopContainerRecorded   = fault.New("pod.stop.container.recorded")
	faultStopKilled              = fault.New("pod.stop.killed")
	faultStopRecorded            = fault.New("pod.stop.recorded")
	faultUnmanagedEnded          = fault.New("pod.unmanaged.ended")
	faultUnmanagedKilled         = fault.New("pod.unmanaged.killed")
	faultUnmanagedNetwork        = fault.New("pod.unmanaged.network")
	faultUnmanagedSnapshots      = fault.New("pod.unmanaged.snapshots")
	faultStopStopped             = fault.New("pod.stop.stopped")
)
