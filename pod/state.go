package pod

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/internal/nspin"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// recordVersion is the format of pod.json and container.json.
const recordVersion = 1

// podPhase is how far a pod's life has come, as its record says it. The -ing phases
// are intents: recovery rolls them back (making) or forward (the others).
type podPhase string

const (
	podMaking   podPhase = "making"   // side effects may exist; nobody knows the pod yet
	podReady    podPhase = "ready"    // complete
	podBroken   podPhase = "broken"   // complete, but its init died
	podStopping podPhase = "stopping" // no new containers; those there are being killed
	podStopped  podPhase = "stopped"  // no container runs
	podRemoving podPhase = "removing" // reported as removed; something may be left
)

// podRecord is pod.json.
type podRecord struct {
	ID         string        `json:"id"`
	Phase      podPhase      `json:"phase"`
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

func (r *podRecord) visible() bool { return r.Phase != podMaking && r.Phase != podRemoving }

// value is what callers see of the record.
func (r *podRecord) value() Pod {
	return Pod{
		ID: r.ID, Config: r.Config, State: r.state(), CreatedAt: r.CreatedAt,
		IPs: r.IPs, NetNS: r.Namespaces.Net, Pid: r.InitPid, Steps: r.Steps,
	}
}

func (r *podRecord) state() State {
	if r.Phase == podReady {
		return Ready
	}
	return NotReady
}

// containerPhase is how far a container's life has come, as its record says it.
type containerPhase string

const (
	containerMaking   containerPhase = "making"   // side effects may exist; nobody knows the container yet
	containerCreated  containerPhase = "created"  // root and spec are ready
	containerStarting containerPhase = "starting" // the shim may know it
	containerRunning  containerPhase = "running"
	containerExited   containerPhase = "exited"
	containerRemoving containerPhase = "removing" // being deleted; no way back
)

// containerRecord is container.json.
type containerRecord struct {
	ID       string              `json:"id"`
	PodID    string              `json:"podID"`
	Phase    containerPhase      `json:"phase"`
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
	// Steps are those of making and starting it.
	Steps []Step `json:"steps,omitempty"`
}

func (r *containerRecord) visible() bool {
	return r.Phase != containerMaking && r.Phase != containerRemoving
}

// running says whether the container's init may be alive.
func (r *containerRecord) running() bool {
	return r.Phase == containerRunning || r.Phase == containerStarting
}

// exit notes how the container ended.
func (r *containerRecord) exit(code int32, at time.Time, oom bool) {
	r.Phase, r.Pid, r.StopAt, r.StopAtBoot = containerExited, 0, time.Time{}, 0
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

// value is what callers see of the record.
func (r *containerRecord) value() Container {
	c := Container{
		ID: r.ID, PodID: r.PodID, Config: r.Config, State: r.state(),
		ImageID: r.ImageID, ImageRef: r.ImageRef,
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		ExitCode: r.ExitCode, Reason: r.Reason, Message: r.Message,
		LogPath: r.LogPath, Pid: r.Pid, StopSignal: syscall.Signal(r.StopSignal),
		UID: r.UID, GID: r.GID, SupplementalGroups: r.Groups, Snapshot: r.Upper,
		VolumeRefs: r.VolumeRefs, Steps: r.Steps,
	}
	if c.State == Created {
		c.StartedAt, c.Pid = time.Time{}, 0
	}
	return c
}

func (r *containerRecord) state() ContainerState {
	switch r.Phase {
	case containerCreated, containerStarting:
		return Created
	case containerRunning:
		return Running
	case containerExited:
		return Exited
	}
	return Unknown
}
