package upstream

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	upframework "k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// handleView is our handle to upstream's plugins.
type handleView struct {
	fwk.Handle // nil
	h          *framework.Handle
	csi        fwk.CSIManager
	devices    fwk.SharedDRAManager
}

// ClientSet implements fwk.Handle, as do the others.
func (v handleView) ClientSet() kubernetes.Interface                        { return v.h.Kube }
func (v handleView) SharedInformerFactory() informers.SharedInformerFactory { return v.h.Informers }
func (v handleView) SharedCSIManager() fwk.CSIManager                       { return v.csi }
func (v handleView) SharedDRAManager() fwk.SharedDRAManager                 { return v.devices }
func (v handleView) ProfileName() string                                    { return v.h.Profile.Name }

func (v handleView) EventRecorder() events.EventRecorderLogger { return recorderView{v.h.Recorder} }

// binderView is the handle that VolumeBinding gets.
type binderView struct{ handleView }

// ClientSet implements fwk.Handle.
func (v binderView) ClientSet() kubernetes.Interface { return recording{v.h.Kube} }

type recorderView struct{ events.EventRecorder }

// WithLogger returns the same recorder: it logs where ours does.
func (v recorderView) WithLogger(klog.Logger) events.EventRecorderLogger { return v }

// nodeView is a node to upstream's plugins.
type nodeView struct {
	fwk.NodeInfo // nil
	node         *framework.NodeInfo
}

// Node implements fwk.NodeInfo, as do the others.
func (v nodeView) Node() *v1.Node               { return v.node.Node() }
func (v nodeView) GetAllocatable() fwk.Resource { return resourceView{of: &v.node.Allocatable} }

func (v nodeView) GetPods() []fwk.PodInfo {
	pods := make([]fwk.PodInfo, len(v.node.Pods))
	for i, p := range v.node.Pods {
		pods[i] = podView{pod: p}
	}
	return pods
}

// resourceView is what a node has to upstream's plugins.
type resourceView struct {
	fwk.Resource // nil
	of           *framework.Resource
}

// GetScalarResources implements fwk.Resource.
func (v resourceView) GetScalarResources() map[v1.ResourceName]int64 { return v.of.Scalar }

// podView is a pod on a node to upstream's plugins.
type podView struct {
	fwk.PodInfo // nil
	pod         *framework.PodInfo
}

// GetPod implements fwk.PodInfo.
func (v podView) GetPod() *v1.Pod { return v.pod.Pod() }

// cycle is what upstream's plugins keep of one pod's cycle. It has no Clone: what they keep is by
// node, and locked, so what-ifs can share it.
type cycle struct {
	ctx   context.Context //nolint:containedctx // our Filter has none
	state fwk.CycleState
	// devices is that DynamicResources has started: another of the plugins may have ended the cycle
	// before.
	devices bool
}

var cycles = framework.NewKey[*cycle]()

// begin returns upstream's state of the cycle, which the first of its plugins starts.
func begin(ctx context.Context, state *framework.CycleState) fwk.CycleState {
	c := cycles.Read(state)
	if c == nil {
		c = &cycle{ctx: ctx, state: upframework.NewCycleState()}
		cycles.Write(state, c)
	}
	return c.state
}
