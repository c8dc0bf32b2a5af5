// Package podconfig has what callers want of pods and containers: their configurations, the checks
// of them, and the runtime handlers that a pod may name. It reads two things of the host: which
// limits it can keep (LimitsOfHost) and its name (Pod.UTSName).
package podconfig

import (
	"fmt"
	"os"

	"github.com/coracle-project/coracle/snapshot"
)

// Pod describes a pod sandbox as the caller wants it. It is immutable once the
// pod is made and kept in the pod's record. The identity of a pod is (Namespace,
// Name, UID, Attempt): a second Run with the same identity joins the first.
type Pod struct {
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

// Container describes a container as the caller wants it. Its identity in the
// pod is (Name, Attempt).
type Container struct {
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

// Identity is what is unique among pods.
func (c *Pod) Identity() string {
	return fmt.Sprintf("%s\x00%s\x00%s\x00%d", c.Namespace, c.Name, c.UID, c.Attempt)
}

// String names the pod in errors as people know it.
func (c *Pod) String() string { return c.Namespace + "/" + c.Name }

// HostNetwork says whether the pod uses the host's network, and with it its host name.
func (c *Pod) HostNetwork() bool { return c.Namespaces.Network == NamespaceNode }

// UserNamespace says whether the pod has a user namespace of its own.
func (c *Pod) UserNamespace() bool { return c.Namespaces.User == NamespacePod }

// HostIPC says whether the pod shares the IPC namespace of the node.
func (c *Pod) HostIPC() bool { return c.Namespaces.IPC == NamespaceNode }

// Identity is what is unique among containers.
func (c *Container) Identity(podID string) string {
	return fmt.Sprintf("%s\x00%s\x00%d", podID, c.Name, c.Attempt)
}

// UTSName is what the pod's UTS namespace is called.
func (c *Pod) UTSName() (string, error) {
	if c.Hostname != "" && !c.HostNetwork() {
		return c.Hostname, nil
	}
	return os.Hostname()
}

// InitDied says that the pod's init is gone, and what may keep it from working.
func (c *Pod) InitDied() string {
	if c.Seccomp.Type != ProfileLocalhost {
		return "its init died"
	}
	return fmt.Sprintf("its init died; the pod's seccomp profile %s must allow prctl, rt_sigprocmask, rt_sigtimedwait, wait4 and exit_group",
		c.Seccomp.Localhost)
}

// SharesPID says whether the container is in a PID namespace with others.
func (c *Container) SharesPID() bool {
	switch c.Security.Namespaces.PID {
	case NamespacePod, NamespaceNode, NamespaceTarget:
		return true
	}
	return false
}

// CgroupDriver says who makes cgroups.
type CgroupDriver string

// The drivers.
const (
	Cgroupfs CgroupDriver = "cgroupfs"
	Systemd  CgroupDriver = "systemd"
)
