package kubelet

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/pod"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/criconfig"
)

// The kubelet's core uses three other packages, and a fourth uses what it knows.
// The packages do not import this one: it wires them together in New, and the types in these
// interfaces are Kubernetes' and CRI's only.
//
//	volume.New(set, volume.Options{RootDir, NodeName, Allocatable, Wake}) → Volumes
//	env.New(set, env.Options{NodeName, Allocatable}) → Env
//	server.New(host Host, cri *cri.Client, server.Options{...}) with Run(ctx) error

// Volumes makes a pod's volumes and keeps their contents up to date; see pod.Volumes.
type Volumes = pod.Volumes

// Env computes a container's environment, command and arguments; see criconfig.Env.
type Env = criconfig.Env

// Network decides what a pod's addresses may send and receive; see pod.Network.
// policy.New(set, policy.Options{...}) returns one.
type Network = pod.Network

// Host is what the kubelet's HTTPS API asks of the kubelet. Every method answers from memory.
type Host interface {
	// Pods returns the pods that this kubelet runs, static ones too, with the status that it would
	// report of each. They are shared: do not change them.
	Pods() []*v1.Pod
	// Pod returns one of them. Of a static pod it takes either UID, its own or its mirror's; an
	// empty uid matches any.
	Pod(namespace, name string, uid types.UID) (*v1.Pod, bool)
	// ContainerID returns the id of the container's newest instance that is running, or an error
	// in upstream's words ("container not found (\"x\")").
	ContainerID(pod *v1.Pod, container string) (string, error)
	// Container returns the last CRI status of the container's newest instance or, if previous, of
	// the one before it; its LogPath is absolute.
	Container(pod *v1.Pod, container string, previous bool) (*runtimeapi.ContainerStatus, error)
	// SandboxID returns the id of the pod's ready sandbox.
	SandboxID(pod *v1.Pod) (string, error)
	// Node returns the node as this kubelet last reported it.
	Node() *v1.Node
	// Healthy returns an error that says what is wrong when pods cannot be run now.
	Healthy(ctx context.Context) error
	// LogDir returns the directory of all pods' logs ("/var/log/pods").
	LogDir() string
}
