package state

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/pod/podconfig"
)

// State is a pod's state.
type State string

// The states of a pod.
const (
	Ready    State = "ready"
	NotReady State = "notready"
)

// Pod is what is known of a pod, a value safe to keep. List and Status make
// it from memory.
type Pod struct {
	ID        string
	Config    podconfig.Pod
	State     State
	CreatedAt time.Time
	IPs       []netip.Addr
	NetNS     string // path of the pinned network namespace; empty on the host's
	Pid       int    // of the pod's init process; 0 if it needs none
	Steps     []Step // of making it
}

// ContainerState is a container's state.
type ContainerState string

// The states of a container.
const (
	Created ContainerState = "created"
	Running ContainerState = "running"
	Exited  ContainerState = "exited"
	Unknown ContainerState = "unknown"
)

// StartError is the Reason of a container that never ran.
const StartError = "StartError"

// Container is what is known of a container, a value safe to keep.
type Container struct {
	ID, PodID string
	Config    podconfig.Container
	State     ContainerState
	// ImageID is the image's id (config digest), ImageRef a repo digest if there is one.
	ImageID, ImageRef                string
	CreatedAt, StartedAt, FinishedAt time.Time // zero if not yet
	ExitCode                         int32
	Reason                           string // "Completed", "Error", "OOMKilled", "StartError"…
	Message                          string
	LogPath                          string // absolute
	Pid                              int    // while running
	// StopSignal is what Stop sends: the config's, else the image's, else SIGTERM.
	StopSignal syscall.Signal
	// User is who the container runs as, resolved against the image.
	UID, GID           int64
	SupplementalGroups []int64
	Snapshot           string // upper directory
	// VolumeRefs are digest references (else ids) of the images of image volumes, by
	// container path.
	VolumeRefs map[string]string
	// Steps are those of making it and, once it is started, of that. EngineSteps are those of the
	// engine in the shim, a part of one of Steps; none if another engine than Coracle's made it.
	Steps, EngineSteps []Step
}

// PodFilter and ContainerFilter choose what List returns; zero fields match all.
// IDs may be given as unique prefixes.
type PodFilter struct {
	ID     string
	State  State
	Labels map[string]string
}

// ContainerFilter chooses containers.
type ContainerFilter struct {
	ID, PodID string
	State     ContainerState
	Labels    map[string]string
}
