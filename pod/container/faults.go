package container

import "github.com/coracle-project/coracle/internal/fault"

// The fault points of this package: places between two side effects, where tests inject errors,
// hangs and kills.
var (
	faultRemoveContainerEnded    = fault.New("pod.remove.container.ended")
	faultCreateRecorded          = fault.New("pod.create.recorded")
	faultCreateSnapshot          = fault.New("pod.create.snapshot")
	faultCreateVolume            = fault.New("pod.create.volume")
	faultRemoveContainerRecorded = fault.New("pod.remove.container.recorded")
	faultRemoveContainerSnapshot = fault.New("pod.remove.container.snapshot")
	faultStartAgain              = fault.New("pod.start.again")
	faultStartRecorded           = fault.New("pod.start.recorded")
	faultStartStarted            = fault.New("pod.start.started")
	faultStopContainerKill       = fault.New("pod.stop.container.kill")
	faultStopContainerRecorded   = fault.New("pod.stop.container.recorded")
	faultUpdateChanged           = fault.New("pod.update.changed")
	faultUpdateRewritten         = fault.New("pod.update.rewritten")
)
