package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Volumes makes a pod's volumes under the kubelet's root directory (pods/UID/volumes/…, upstream's
// layout) and keeps their contents up to date. All methods are safe for concurrent use, are
// idempotent, and answer the same after a restart of the kubelet: what stands is found on disk.
type Volumes interface {
	// Mount makes every volume of the pod that does not stand yet, and starts to keep all of them
	// up to date (config maps, secrets, downward API, tokens) until Unmount. Called before the
	// pod's first container is made, and again for every pod that runs when the kubelet starts. An
	// error is in upstream's words, fit for a FailedMount event ("MountVolume.SetUp failed for
	// volume \"x\" : configmap \"y\" not found"), and leads to another call after a back-off, or at
	// once when Options.Wake(uid) is called because what was missing has come.
	Mount(ctx context.Context, pod *v1.Pod) error
	// Refresh looks at a changed pod object (labels and annotations in downward API volumes).
	Refresh(ctx context.Context, pod *v1.Pod) error
	// Mounts returns the container's mounts, subPath and subPathExpr (expanded with envs) safely
	// resolved. Mount has succeeded before. Errors become CreateContainerConfigError.
	Mounts(ctx context.Context, pod *v1.Pod, container *v1.Container, envs []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, error)
	// Devices returns the container's block volumes. Mount has succeeded before. Errors become
	// CreateContainerConfigError.
	Devices(ctx context.Context, pod *v1.Pod, container *v1.Container) ([]*runtimeapi.Device, error)
	// Stopped is told that no container of the pod runs any more, if its end goes on for another
	// reason: a pod of the same name may have its volumes now. Unmount says so, too.
	Stopped(uid types.UID)
	// Unmount removes all of the pod's volumes; none of its containers runs any more.
	Unmount(ctx context.Context, uid types.UID) error
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

// Users says which ids of the node a pod's users have. It is safe for concurrent use.
type Users interface {
	// Of returns the pod's user namespace, the same while it is on the node, or nil if that is the
	// node's.
	Of(pod *v1.Pod) (*runtimeapi.UserNamespace, error)
}
