// Package state has the states of pods and containers: their records on disk, the phases that the
// records can be in, and what callers see of them.
package state

import (
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/table"
)

// recordVersion is the format of pod.json and container.json.
const recordVersion = 1

// PodPhase is how far a pod's life has come, as its record says it. The -ing phases
// are intents: recovery rolls them back (making) or forward (the others).
type PodPhase string

const (
	PodMaking   PodPhase = "making"   // side effects may exist; no one knows the pod yet
	PodReady    PodPhase = "ready"    // complete
	PodBroken   PodPhase = "broken"   // complete, but its init died
	PodStopping PodPhase = "stopping" // no new containers; those there are being killed
	PodStopped  PodPhase = "stopped"  // no container runs
	PodRemoving PodPhase = "removing" // reported as removed; something may be left
)

// PodRecord is pod.json.
type PodRecord struct {
	ID         string        `json:"id"`
	Phase      PodPhase      `json:"phase"`
	Config     podconfig.Pod `json:"config"`
	CreatedAt  time.Time     `json:"createdAt"`
	IPs        []netip.Addr  `json:"ips,omitempty"`
	Namespaces nspin.Set     `json:"namespaces"`
	Labels     mac.Labels    `json:"labels,omitzero"`
	// Init says that a pod init may be in the shim under the pod's id, InitPid
	// which process it is.
	Init    bool `json:"init,omitempty"`
	InitPid int  `json:"initPid,omitempty"`
	// Clean says that network, namespaces and mounts are gone (phases stopped and removing).
	Clean bool `json:"clean,omitempty"`
	// Steps are those of making it.
	Steps []Step `json:"steps,omitempty"`
}

// Visible says whether callers may see the pod: not while it is half-made or half-removed.
func (r *PodRecord) Visible() bool { return r.Phase != PodMaking && r.Phase != PodRemoving }

// Value is what callers see of the record.
func (r *PodRecord) Value() Pod {
	return Pod{
		ID: r.ID, Config: r.Config, State: r.state(), CreatedAt: r.CreatedAt,
		IPs: r.IPs, NetNS: r.Namespaces.Net, Pid: r.InitPid, Steps: r.Steps,
	}
}

func (r *PodRecord) state() State {
	if r.Phase == PodReady {
		return Ready
	}
	return NotReady
}

// MustBeReady is ErrPrecondition unless containers can be made in the pod.
func (r *PodRecord) MustBeReady() error {
	switch r.Phase {
	case PodReady:
		return nil
	case PodBroken:
		return errdefs.Errorf(errdefs.ErrPrecondition, "pod %s is not ready: %s", r.ID, r.Config.InitDied())
	default:
		return errdefs.Errorf(errdefs.ErrPrecondition, "pod %s is not ready (%s)", r.ID, r.Phase)
	}
}

// ContainerPhase is how far a container's life has come, as its record says it.
type ContainerPhase string

const (
	ContainerMaking   ContainerPhase = "making"   // side effects may exist; no one knows the container yet
	ContainerCreated  ContainerPhase = "created"  // root and spec are ready
	ContainerStarting ContainerPhase = "starting" // the shim may know it
	ContainerRunning  ContainerPhase = "running"
	ContainerExited   ContainerPhase = "exited"
	ContainerRemoving ContainerPhase = "removing" // being deleted; no way back
)

// ContainerRecord is container.json.
type ContainerRecord struct {
	ID       string              `json:"id"`
	PodID    string              `json:"podID"`
	Phase    ContainerPhase      `json:"phase"`
	Config   podconfig.Container `json:"config"`
	ImageID  string              `json:"imageID"`
	ImageRef string              `json:"imageRef,omitempty"`

	CreatedAt  time.Time `json:"createdAt"`
	StartedAt  time.Time `json:"startedAt,omitzero"` // of the last try, if it was ever to be started
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// StopAt is when a stop under way turns to SIGKILL; zero if none is.
	StopAt time.Time `json:"stopAt,omitzero"`
	// StopAtBoot is StopAt as time since boot, which cannot be set.
	StopAtBoot time.Duration `json:"stopAtBoot,omitempty"`

	Pid       int    `json:"pid,omitempty"`
	ExitCode  int32  `json:"exitCode,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
	OOMKilled bool   `json:"oomKilled,omitempty"`

	LogPath    string  `json:"logPath,omitempty"`
	StopSignal int     `json:"stopSignal"`
	UID        int64   `json:"uid"`
	GID        int64   `json:"gid"`
	Groups     []int64 `json:"groups,omitempty"`
	Upper      string  `json:"upper,omitempty"`
	// Labels are empty if the container has those of its pod.
	Labels mac.Labels `json:"labels,omitzero"`
	// Checkpoint is the directory of CRIU's images that the container goes on from; while it is
	// being made, that of the saved container.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Frozen is set while a checkpoint is made of it.
	Frozen bool `json:"frozen,omitempty"`
	// Saving are files and directories of checkpoints under way, which are of no use to anybody if
	// the daemon does not live to end them.
	Saving []string `json:"saving,omitempty"`
	// VolumeRefs: see Container.
	VolumeRefs map[string]string `json:"volumeRefs,omitempty"`
	// Steps are those of making and starting it, EngineSteps those of the engine in the shim: a part
	// of one of Steps.
	Steps       []Step `json:"steps,omitempty"`
	EngineSteps []Step `json:"engineSteps,omitempty"`
}

// Visible says whether callers may see the container: not while it is half-made or half-removed.
func (r *ContainerRecord) Visible() bool {
	return r.Phase != ContainerMaking && r.Phase != ContainerRemoving
}

// Running says whether the container's init may be alive.
func (r *ContainerRecord) Running() bool {
	return r.Phase == ContainerRunning || r.Phase == ContainerStarting
}

// Exit notes how the container ended.
func (r *ContainerRecord) Exit(code int32, at time.Time, oom bool) {
	r.Phase, r.Pid, r.StopAt, r.StopAtBoot = ContainerExited, 0, time.Time{}, 0
	r.ExitCode, r.FinishedAt = code, at
	r.OOMKilled = r.OOMKilled || oom
	switch {
	case r.OOMKilled && code != 0:
		r.Reason = "OOMKilled"
	case code == 0:
		r.Reason = "Completed"
	default:
		r.Reason = "Error"
	}
}

// Value is what callers see of the record.
func (r *ContainerRecord) Value() Container {
	c := Container{
		ID: r.ID, PodID: r.PodID, Config: r.Config, State: r.state(),
		ImageID: r.ImageID, ImageRef: r.ImageRef,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		ExitCode: r.ExitCode, Reason: r.Reason, Message: r.Message,
		LogPath: r.LogPath, Pid: r.Pid, StopSignal: syscall.Signal(r.StopSignal),
		UID: r.UID, GID: r.GID, SupplementalGroups: r.Groups, Snapshot: r.Upper,
		VolumeRefs: r.VolumeRefs, Steps: r.Steps, EngineSteps: r.EngineSteps,
	}
	if c.State == Created {
		c.StartedAt, c.Pid = time.Time{}, 0
	}
	return c
}

func (r *ContainerRecord) state() ContainerState {
	switch r.Phase {
	case ContainerCreated, ContainerStarting:
		return Created
	case ContainerRunning:
		return Running
	case ContainerExited:
		return Exited
	}
	return Unknown
}

// VolumeID is the id of the snapshot of the container's mount number i. Ids of snapshots
// have 64 bytes at most; what is left of the container's is random enough.
func VolumeID(containerID string, i int) string {
	return VolumePrefix(containerID) + strconv.Itoa(i)
}

// VolumePrefix is how the ids of the snapshots of all image volumes of a container start.
func VolumePrefix(containerID string) string { return containerID[:table.IDLength*3/4] + "-v" }

// Volumes are the ids of the snapshots of a container's image volumes.
func (r *ContainerRecord) Volumes() (ids []string) {
	for i := range r.Config.Mounts {
		if r.Config.Mounts[i].Image != "" {
			ids = append(ids, VolumeID(r.ID, i))
		}
	}
	if r.Checkpoint != "" {
		ids = append(ids, CheckpointImageID(r.ID)) // if it came from an image
	}
	return ids
}

// CheckpointImageID is the id of the snapshot that shows a checkpoint image.
func CheckpointImageID(containerID string) string { return containerID[:table.IDLength*3/4] + "-c" }

// The objects of a node in memory.
type (
	PodEntry       = table.Entry[PodRecord]
	ContainerEntry = table.Entry[ContainerRecord]
	PodTable       = table.Table[PodRecord]
	ContainerTable = table.Table[ContainerRecord]
)
