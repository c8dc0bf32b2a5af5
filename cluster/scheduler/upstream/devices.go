package upstream

import (
	"context"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	kubefeatures "k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// wantsDevices says whether pod has ResourceClaims, or requests extended resources, which may be
// devices of a DeviceClass.
func wantsDevices(pod *v1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 || requestsExtended(pod.Spec.Overhead) {
		return true
	}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if requestsExtended(containers[i].Resources.Requests) {
				return true
			}
		}
	}
	return false
}

func requestsExtended(list v1.ResourceList) bool {
	for name, q := range list {
		switch name {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
			continue
		}
		if !q.IsZero() && schedutil.IsDRAExtendedResourceName(name) {
			return true
		}
	}
	return false
}

type devicesKey struct{}

// allocations are the devices and who has them, of all profiles.
type allocations struct {
	gate    *gate
	manager atomic.Pointer[dynamicresources.DefaultDRAManager] // nil until the gate is open
}

// DeviceClasses returns a function that says whether an extended resource is the devices of a
// DeviceClass, on nodes that do not have it themselves. Before the first pod that requests an
// extended resource, none is.
func DeviceClasses(h *framework.Handle) func(v1.ResourceName) bool {
	all := allocationsOf(h)
	return func(name v1.ResourceName) bool {
		manager := all.manager.Load()
		return manager != nil && manager.DeviceClassResolver().GetDeviceClass(name) != nil
	}
}

func allocationsOf(h *framework.Handle) *allocations {
	return framework.Shared(h, devicesKey{}, func() *allocations {
		a := &allocations{}
		a.gate = newGate(h, "resource.k8s.io/v1", func(ctx context.Context) ([]toolscache.DoneChecker, error) { return a.prepare(ctx, h) })
		return a
	})
}

// prepare asks for the informers as upstream's scheduler does.
func (a *allocations) prepare(ctx context.Context, h *framework.Handle) ([]toolscache.DoneChecker, error) {
	metrics.Register() // the plugin counts, and would find nothing to count with
	api := h.Informers.Resource().V1()
	claimInformer := api.ResourceClaims().Informer()
	claims := assumecache.NewAssumeCache(klog.FromContext(ctx), claimInformer, "ResourceClaim", "", nil)
	o := resourceslicetracker.Options{
		EnableDeviceTaintRules:   utilfeature.DefaultFeatureGate.Enabled(kubefeatures.DRADeviceTaintRules),
		EnableConsumableCapacity: utilfeature.DefaultFeatureGate.Enabled(kubefeatures.DRAConsumableCapacity),
		SliceInformer:            api.ResourceSlices(), KubeClient: h.Kube,
	}
	if o.EnableDeviceTaintRules {
		o.TaintInformer, o.ClassInformer = h.Informers.Resource().V1beta2().DeviceTaintRules(), api.DeviceClasses()
	}
	slices, err := resourceslicetracker.StartTracker(ctx, o)
	if err != nil {
		return nil, err
	}
	manager := dynamicresources.NewDRAManager(ctx, claims, slices, h.Informers)
	a.manager.Store(manager)

	claimEvents := claims.AddEventHandler(h.Moves(framework.ResourceClaim))
	sliceEvents, err := slices.AddEventHandler(h.Moves(framework.ResourceSlice))
	if err != nil {
		return nil, err
	}
	// The cache of extended resources hears of a class before pods are tried because of it.
	moves := h.Moves(framework.DeviceClass)
	if extended, ok := manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache); ok && extended != nil {
		extended.AddEventHandler(moves)
		moves = extended
	}
	classEvents, err := api.DeviceClasses().Informer().AddEventHandler(moves)
	if err != nil {
		return nil, err
	}
	return []toolscache.DoneChecker{
		claimInformer.HasSyncedChecker(), claimEvents.HasSyncedChecker(), sliceEvents.HasSyncedChecker(), classEvents.HasSyncedChecker(),
	}, nil
}

// DynamicResources allocates devices to the ResourceClaims of pods, by the structured parameters
// that drivers publish in ResourceSlices. A pod that requests an extended resource which is the
// devices of a DeviceClass gets a ResourceClaim of its own on nodes that do not have the resource.
type DynamicResources struct{ imported }

// NewDynamicResources returns the plugin. Looking for devices on one node ends after filter, and
// waiting for devices to be ready after binding.
func NewDynamicResources(h *framework.Handle, filter, binding time.Duration) *DynamicResources {
	all := allocationsOf(h)
	pl := &DynamicResources{imported{name: dynamicresources.Name, needs: wantsDevices, gate: all.gate}}
	pl.make = func(ctx context.Context) (fwk.Plugin, error) {
		args := &config.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: filter},
			BindingTimeout: &metav1.Duration{Duration: binding},
		}
		return dynamicresources.New(ctx, args, handleView{h: h, devices: all.manager.Load()}, features())
	}
	return pl
}

// PreEnqueue keeps a pod waiting whose claims do not exist yet.
func (pl *DynamicResources) PreEnqueue(pod *v1.Pod) *framework.Status {
	if s := pl.preEnqueue(pod); !s.OK() || !pl.needs(pod) {
		return s
	}
	made := pl.current.Load()
	if made == nil {
		return nil // its first cycle makes it
	}
	return pl.status(made.Plugin.(fwk.PreEnqueuePlugin).PreEnqueue(context.Background(), pod))
}

// PreFilter looks up the pod's claims and what is free.
func (pl *DynamicResources) PreFilter(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo,
) (sets.Set[string], *framework.Status) {
	names, s := pl.preFilter(ctx, state, pod)
	if c := cycles.Read(state); c != nil && pl.needs(pod.Pod()) && pl.current.Load() != nil {
		c.devices = true
	}
	return names, s
}

// Filter looks for devices on node.
func (pl *DynamicResources) Filter(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	return pl.filter(state, pod, node)
}

// PostFilter takes devices back from a claim of the pod's that keeps it from all nodes, if no other
// pod uses it.
func (pl *DynamicResources) PostFilter(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ *framework.Rejections,
) (*string, *framework.Status) {
	c := cycles.Read(state)
	if made := pl.current.Load(); c != nil && c.devices && made != nil && pl.needs(pod.Pod()) {
		_, s := made.Plugin.(fwk.PostFilterPlugin).PostFilter(ctx, c.state, pod.Pod(), nil)
		return nil, pl.status(s)
	}
	return nil, noClaims
}

var noClaims = framework.NewStatus(framework.Unschedulable, dynamicresources.Name, "no new claims to deallocate")

// PreScore skips pods without claims.
func (pl *DynamicResources) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	if c := cycles.Read(state); c == nil || !c.devices || !pl.needs(pod.Pod()) {
		return framework.Skipped
	}
	return nil
}

// Score prefers nodes with the devices that claims name first.
func (pl *DynamicResources) Score(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo,
) (int64, *framework.Status) {
	c := cycles.Read(state)
	score, s := pl.current.Load().Plugin.(fwk.ScorePlugin).Score(c.ctx, c.state, pod.Pod(), nodeView{node: node})
	return score, pl.status(s)
}

// Normalize makes the best score the highest possible one.
func (pl *DynamicResources) Normalize(_ *framework.CycleState, scores []int64, _ []*framework.NodeInfo) {
	framework.Normalize(scores)
}

// Reserve keeps the devices that Filter has found from other pods.
func (pl *DynamicResources) Reserve(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo, node string,
) *framework.Status {
	return pl.reserve(ctx, state, pod, node)
}

// Unreserve gives them back.
func (pl *DynamicResources) Unreserve(ctx context.Context, state *framework.CycleState, pod *framework.PodInfo, node string) {
	pl.unreserve(ctx, state, pod, node)
}

// Prepares says whether the pod has claims.
func (pl *DynamicResources) Prepares(state *framework.CycleState, pod *framework.PodInfo, node string) bool {
	return pl.prepares(state, pod, node)
}

// PreBind writes the allocation to the claims, and waits for devices that need time to be ready.
func (pl *DynamicResources) PreBind(ctx context.Context, state *framework.CycleState,
	pod *framework.PodInfo, node string,
) *framework.Status {
	return pl.preBind(ctx, state, pod, node)
}

// Events are upstream's, in its order.
func (pl *DynamicResources) Events() []framework.EventHint {
	return pl.events(
		framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeLabel | framework.UpdateNodeAllocatable},
		framework.Event{Kind: framework.ResourceClaim, Action: updated},
		framework.Event{Kind: framework.Pod, Action: framework.UpdatePodClaims},
		framework.Event{Kind: framework.DeviceClass, Action: updated},
		framework.Event{Kind: framework.ResourceSlice, Action: updated},
	)
}
