package upstream

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// hasClaims says whether volumes of pod need PersistentVolumeClaims.
func hasClaims(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return true
		}
	}
	return false
}

// attaches says whether a driver may have to attach volumes of pod: those of claims, and disks of
// clouds that the pod names itself, which drivers have taken over.
func attaches(pod *v1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.AWSElasticBlockStore != nil ||
			v.GCEPersistentDisk != nil || v.AzureDisk != nil || v.AzureFile != nil || v.Cinder != nil || v.PortworxVolume != nil ||
			v.VsphereVolume != nil {
			return true
		}
	}
	return false
}

type storageKey struct{}

// storage returns the gate of the plugins for volumes.
func storage(h *framework.Handle) *gate {
	return framework.Shared(h, storageKey{}, func() *gate {
		return newGate(h, "storage.k8s.io", func(context.Context) ([]toolscache.DoneChecker, error) {
			api := h.Informers.Storage().V1()
			var checks []toolscache.DoneChecker
			for kind, informer := range map[framework.Kind]toolscache.SharedIndexInformer{
				framework.CSINode: api.CSINodes().Informer(), framework.CSIDriver: api.CSIDrivers().Informer(),
				framework.CSICapacity: api.CSIStorageCapacities().Informer(), framework.Attachment: api.VolumeAttachments().Informer(),
			} {
				registered, err := informer.AddEventHandler(h.Moves(kind))
				if err != nil {
					return nil, err
				}
				checks = append(checks, registered.HasSyncedChecker())
			}
			return checks, nil
		})
	})
}

func features() feature.Features {
	return feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
}

// VolumeBinding chooses volumes for claims that wait for their first pod, has them provisioned, and
// keeps pods on nodes from which their volumes can be reached.
type VolumeBinding struct{ imported }

// NewVolumeBinding returns the plugin. A pod waits for its volumes at most as long as patience
// says; then it is tried again.
func NewVolumeBinding(h *framework.Handle, patience time.Duration) *VolumeBinding {
	pl := &VolumeBinding{imported{name: volumebinding.Name, needs: hasClaims, gate: storage(h)}}
	pl.make = func(ctx context.Context) (fwk.Plugin, error) {
		plugin, err := volumebinding.New(ctx, &config.VolumeBindingArgs{}, binderView{handleView{h: h}}, features())
		if err != nil {
			return nil, err
		}
		made, ok := plugin.(*volumebinding.VolumeBinding)
		if !ok {
			return nil, fmt.Errorf("it is a %T", plugin)
		}
		made.Binder, err = newBinder(h, made.Binder, patience)
		return made, err
	}
	return pl
}

// PreEnqueue implements framework.PreEnqueue; the other methods implement the interfaces of their
// names.
func (pl *VolumeBinding) PreEnqueue(pod *v1.Pod) *framework.Status { return pl.preEnqueue(pod) }

// PreFilter looks up the pod's claims.
func (pl *VolumeBinding) PreFilter(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	return pl.preFilter(ctx, state, pod)
}

// Filter says whether the claims have volumes on node, or can have.
func (pl *VolumeBinding) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	return pl.filter(state, pod, node)
}

// Reserve keeps the volumes that Filter has found from other pods.
func (pl *VolumeBinding) Reserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	return pl.reserve(ctx, state, pod, node)
}

// Unreserve gives them back.
func (pl *VolumeBinding) Unreserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) {
	pl.unreserve(ctx, state, pod, node)
}

// Prepares says whether volumes are to be bound.
func (pl *VolumeBinding) Prepares(state *framework.CycleState, pod *framework.PodInfo, node string) bool {
	return pl.prepares(state, pod, node)
}

// PreBind asks for the volumes to be bound or provisioned and waits until they are.
func (pl *VolumeBinding) PreBind(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	return pl.preBind(ctx, state, pod, node)
}

// updated is that an object other than a pod or a node came or changed.
const updated = framework.Add | framework.Update

// Events are upstream's, in its order.
func (pl *VolumeBinding) Events() []framework.EventHint {
	return pl.events(
		framework.Event{Kind: framework.Class, Action: updated},
		framework.Event{Kind: framework.Claim, Action: updated},
		framework.Event{Kind: framework.Volume, Action: updated},
		framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel},
		framework.Event{Kind: framework.CSINode, Action: updated},
		framework.Event{Kind: framework.CSIDriver, Action: framework.Update},
		framework.Event{Kind: framework.CSICapacity, Action: updated},
	)
}

// NodeVolumeLimits keeps pods off nodes on which a driver can attach no more volumes.
type NodeVolumeLimits struct{ imported }

// NewNodeVolumeLimits returns the plugin.
func NewNodeVolumeLimits(h *framework.Handle) *NodeVolumeLimits {
	pl := &NodeVolumeLimits{imported{name: nodevolumelimits.CSIName, needs: attaches, gate: storage(h)}}
	pl.make = func(ctx context.Context) (fwk.Plugin, error) {
		nodes := nodevolumelimits.NewCSIManager(h.Informers.Storage().V1().CSINodes().Lister())
		return nodevolumelimits.NewCSI(ctx, nil, handleView{h: h, csi: nodes}, features())
	}
	return pl
}

// PreEnqueue implements framework.PreEnqueue, as the other methods do the interfaces of their
// names.
func (pl *NodeVolumeLimits) PreEnqueue(pod *v1.Pod) *framework.Status { return pl.preEnqueue(pod) }

// PreFilter skips pods without claims.
func (pl *NodeVolumeLimits) PreFilter(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	return pl.preFilter(ctx, state, pod)
}

// Filter counts the volumes of drivers that have a limit on node.
func (pl *NodeVolumeLimits) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	return pl.filter(state, pod, node)
}

// Events are upstream's, in its order.
func (pl *NodeVolumeLimits) Events() []framework.EventHint {
	return pl.events(
		framework.Event{Kind: framework.CSINode, Action: framework.Add},
		framework.Event{Kind: framework.CSINode, Action: framework.Update},
		framework.Event{Kind: framework.Pod, Action: framework.Delete},
		framework.Event{Kind: framework.Claim, Action: framework.Add},
		framework.Event{Kind: framework.Attachment, Action: framework.Delete},
	)
}
