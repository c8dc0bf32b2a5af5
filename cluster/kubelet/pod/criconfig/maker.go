// Package criconfig turns pods and containers of the API into those of CRI: sandboxes, security
// contexts, resources, mounts, and the files that only the kubelet can write (hosts, termination
// messages).
package criconfig

import (
	"context"
	"log/slog"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"

	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
)

// Maker makes configurations. All fields are needed, but those that say otherwise.
type Maker struct {
	Log *slog.Logger

	Images  runtimeapi.ImageServiceClient
	Volumes Volumes
	Env     Env
	Cgroups Cgroups
	Users   Users
	DNS     DNS
	// HostIPs returns the node's addresses.
	HostIPs func() []string
	// RootDir is the kubelet's directory.
	RootDir       string
	Logs          podlogs.Dirs
	ClusterDomain string
	// MemoryCapacity of the node, in bytes, for OOM scores.
	MemoryCapacity int64
	// SeccompUnconfined leaves containers that name no seccomp profile without one; else they have
	// the runtime's.
	SeccompUnconfined bool
}

// Volumes says what of a pod's volumes a container sees. It is safe for concurrent use.
type Volumes interface {
	// Mounts returns the container's mounts, subPath and subPathExpr (expanded with envs) safely
	// resolved. The pod's volumes are mounted. Errors become CreateContainerConfigError.
	Mounts(ctx context.Context, pod *v1.Pod, container *v1.Container, envs []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, error)
	// Devices returns the container's block volumes. The pod's volumes are mounted. Errors become
	// CreateContainerConfigError.
	Devices(ctx context.Context, pod *v1.Pod, container *v1.Container) ([]*runtimeapi.Device, error)
}

// Env computes what a container is run with. It is safe for concurrent use.
type Env interface {
	// Resolve returns the container's environment (services, envFrom, env with all its sources),
	// and its command and arguments with $(NAME) expanded. podIPs are empty on host network only
	// before the node has an address. Errors become CreateContainerConfigError in upstream's words
	// ("configmap \"x\" not found", "couldn't find key a in ConfigMap ns/x").
	Resolve(ctx context.Context, pod *v1.Pod, container *v1.Container, podIPs, hostIPs []string) (envs []*runtimeapi.KeyValue, command,
		args []string, err error)
}

// Cgroups says which cgroups containers get.
type Cgroups interface {
	// Parent returns the cgroup parent to give to the runtime, empty for the runtime's own choice.
	Parent(pod *v1.Pod) string
	// Container returns what a container's own cgroup is to have because the pod's is not made
	// here, by the names of cgroup v2's files; nil for nothing.
	Container() map[string]string
}

// Users says which ids of the node a pod's users have. It is safe for concurrent use.
type Users interface {
	// Of returns the pod's user namespace, the same while it is on the node, or nil if that is the
	// node's.
	Of(pod *v1.Pod) (*runtimeapi.UserNamespace, error)
}

// DNS computes a pod's resolv.conf.
type DNS interface {
	GetPodDNS(ctx context.Context, pod *v1.Pod) (*runtimeapi.DNSConfig, error)
}

// IPs returns the addresses of a pod: the node's on the node's network.
func (m *Maker) IPs(pod *v1.Pod, observed *kubecontainer.PodStatus) []string {
	if pod.Spec.HostNetwork {
		return m.HostIPs()
	}
	return observed.IPs
}

// Dir returns a pod's directory below the kubelet's, root.
func Dir(root string, uid types.UID) string { return filepath.Join(root, "pods", string(uid)) }
