package pod

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/snapshot"
)

// Config describes a pod sandbox as the caller wants it. It is immutable once the
// pod is made and kept in the pod's record. The identity of a pod is (Namespace,
// Name, UID, Attempt): a second Run with the same identity joins the first.
type Config struct {
	Name, UID, Namespace string
	Attempt              uint32
	Hostname             string
	LogDirectory         string // absolute; container log paths are taken from it
	DNS                  DNS
	Ports                []Port
	Labels, Annotations  map[string]string
	CgroupParent         string
	Sysctls              map[string]string
	RuntimeHandler       string
	Namespaces           Namespaces
	Privileged           bool
	ReadonlyRootfs       bool
	// Seccomp and AppArmor apply to the pod's init process only, if it has one. User and groups
	// are reported only: the init has an id of its own.
	User               User
	SupplementalGroups []int64
	Seccomp            Seccomp
	AppArmor           string // as in Security
	SELinux            SELinux
	// Overhead and Resources are what the kubelet says of the pod as a whole.
	Overhead, Resources *Resources
}

// NamespaceMode says whose namespace is used.
type NamespaceMode string

// The modes. NamespaceTarget is for PID only: that of container TargetID.
const (
	NamespacePod       NamespaceMode = "pod"
	NamespaceContainer NamespaceMode = "container"
	NamespaceNode      NamespaceMode = "node"
	NamespaceTarget    NamespaceMode = "target"
)

// Namespaces are the choices for a pod or a container.
type Namespaces struct {
	Network, PID, IPC NamespaceMode
	TargetID          string
	// User is NamespacePod for a user namespace of the pod's own, whose ids are Users;
	// else NamespaceNode or empty. A container that says nothing has its pod's.
	User  NamespaceMode
	Users IDMaps
}

// DNS is what goes into resolv.conf; all empty: the host's file is copied.
type DNS struct{ Servers, Searches, Options []string }

// Port is a published port. HostPort 0 publishes nothing.
type Port struct {
	Protocol                string // "tcp", "udp", "sctp"
	ContainerPort, HostPort int32
	HostIP                  string
}

// User is who a process runs as. With neither UID nor Name the image decides.
type User struct {
	UID, GID *int64
	Name     string
}

// Seccomp chooses a profile.
type Seccomp struct {
	Type      ProfileType
	Localhost string // path of a profile file, with ProfileLocalhost
}

// ProfileType is a kind of security profile.
type ProfileType string

// The kinds. The zero value is ProfileUnconfined for seccomp.
const (
	ProfileUnconfined     ProfileType = "unconfined"
	ProfileRuntimeDefault ProfileType = "runtime/default"
	ProfileLocalhost      ProfileType = "localhost"
)

// SELinux is a label's four parts.
type SELinux struct{ User, Role, Type, Level string }

// Resources are limits of a container or pod; zero values mean unset.
type Resources struct {
	CPUPeriod, CPUQuota, CPUShares int64 // microseconds, microseconds, weight
	MemoryLimit, MemorySwapLimit   int64 // bytes
	OOMScoreAdj                    int64
	CpusetCPUs, CpusetMems         string
	Hugepages                      map[string]uint64 // page size ("2MB") to bytes
	Unified                        map[string]string // cgroup v2 files
}

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
	Config    Config
	State     State
	CreatedAt time.Time
	IPs       []netip.Addr
	NetNS     string // path of the pinned network namespace; empty on the host's
	Pid       int    // of the pod's init process; 0 if it needs none
	Steps     []Step // of making it
}

// Mount puts a host path or an image into a container.
type Mount struct {
	ContainerPath, HostPath string
	Readonly                bool
	RecursiveReadonly       bool
	SELinuxRelabel          bool
	Propagation             Propagation
	// Users shows the owners of files as others, for containers with a user namespace.
	Users IDMaps
	// Image is mounted in place of a host path, read-only; ImageSubPath chooses a file or
	// directory in it.
	Image, ImageSubPath string
	// Options are more options of the bind mount: noexec, nodev, nosuid and their kin.
	Options []string
}

// IDMap is a range of ids of a user namespace.
type IDMap = snapshot.IDMap

// IDMaps are the ids of a user namespace; the zero value is the host's own.
type IDMaps = snapshot.Users

// Propagation is a mount's propagation.
type Propagation string

// The propagations.
const (
	PropagationPrivate         Propagation = "private"
	PropagationHostToContainer Propagation = "rslave"
	PropagationBidirectional   Propagation = "rshared"
)

// Device is a host device given to a container.
type Device struct {
	ContainerPath, HostPath string
	Permissions             string // of "rwm"
}

// ContainerConfig describes a container as the caller wants it. Its identity in the
// pod is (Name, Attempt).
type ContainerConfig struct {
	Name    string
	Attempt uint32
	// Image is the reference or id to run; UserImage what the user wrote.
	Image, UserImage    string
	Command, Args       []string
	WorkingDir          string
	Env                 [][2]string // in order; later wins
	Mounts              []Mount
	Devices             []Device
	CDIDevices          []string
	Labels, Annotations map[string]string
	LogPath             string // relative to the pod's LogDirectory
	Stdin, StdinOnce    bool
	TTY                 bool
	Resources           Resources
	Security            Security
	StopSignal          string // overrides the image's; "SIGTERM"
}

// Security is a container's security context.
type Security struct {
	Privileged                 bool
	AddCapabilities            []string // "ALL" or names with or without CAP_
	DropCapabilities           []string
	AddAmbientCapabilities     []string
	Namespaces                 Namespaces
	User                       User
	SupplementalGroups         []int64
	SupplementalGroupsStrict   bool // do not merge the image's groups
	ReadonlyRootfs, NoNewPrivs bool
	MaskedPaths, ReadonlyPaths []string
	Seccomp                    Seccomp
	AppArmor                   string // "", "runtime/default", "unconfined", "localhost/<name>"
	SELinux                    SELinux
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

// Container is what is known of a container, a value safe to keep.
type Container struct {
	ID, PodID string
	Config    ContainerConfig
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
	Steps      []Step // of making it and, once it is started, of that
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

// ContainerStats is one reading of a container's use.
type ContainerStats struct {
	ID, PodID string
	cgstat.Usage
	// CPURate is the nanoseconds of CPU time per second since the reading before; nil if
	// this is the first.
	CPURate *uint64
	// Writable layer.
	DiskTime              time.Time
	DiskBytes, DiskInodes uint64
}

// PodStats is one reading of a pod's use. Usage is that of the pod's own cgroup, or else the
// sum of its running containers.
type PodStats struct {
	ID string
	cgstat.Usage
	CPURate *uint64 // as in ContainerStats
	// Interfaces has the pod's own first; none on the host's network.
	NetworkTime time.Time
	Interfaces  []InterfaceUsage
	Containers  []ContainerStats // that run
}

// InterfaceUsage is what has gone through an interface of a pod.
type InterfaceUsage = network.InterfaceUsage

// PodStatsFilter chooses pods; zero fields match all.
type PodStatsFilter struct {
	ID     string
	Labels map[string]string
}
