package plugins

import (
	"context"
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corehelper "k8s.io/kubernetes/pkg/apis/core/v1/helper"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeResourcesFit keeps pods off nodes that have too little left, and prefers nodes with the most
// left, or the least when packing.
type nodeResourcesFit struct {
	packing   bool
	shape     []ShapePoint
	resources []ResourceWeight
	ignored   sets.Set[v1.ResourceName]
	groups    sets.Set[string]
	// devices says whether an extended resource is the devices of a DeviceClass.
	devices func(v1.ResourceName) bool
}

// newNodeResourcesFit returns the plugin.
func newNodeResourcesFit(args Args, devices func(v1.ResourceName) bool) *nodeResourcesFit {
	return &nodeResourcesFit{
		packing: args.Packing, shape: args.Shape, resources: args.Resources,
		ignored: sets.New(args.Ignored...), groups: sets.New(args.IgnoredGroups...),
		devices: devices,
	}
}

// allocated says whether a node that has these amounts gets name from DynamicResources, because it
// is the devices of a DeviceClass and the node itself has none.
func (f *nodeResourcesFit) allocated(name v1.ResourceName, has *framework.Resource) bool {
	return has.Scalar[name] == 0 && f.devices(name)
}

// ignores says whether name is a resource that is not looked for.
func (f *nodeResourcesFit) ignores(name v1.ResourceName) bool {
	if len(f.ignored) == 0 && len(f.groups) == 0 || !corehelper.IsExtendedResourceName(name) {
		return false
	}
	group, _, _ := strings.Cut(string(name), "/")
	return f.ignored.Has(name) || f.groups.Has(group)
}

// What a node can have too little of, but for scalar resources, and whether even all of it would
// be too little (then no preemption can help). They index insufficient.
const (
	shortOfPods = 1 << iota
	shortOfCPU
	shortOfMemory
	shortOfStorage
	tooSmall
	shortages
)

// insufficient holds the statuses of all combinations, made once: a full cluster gives one for
// every node.
var insufficient = func() (table [shortages]*framework.Status) {
	reasons := []string{"Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"}
	for combination := 1; combination < shortages; combination++ {
		var why []string
		for i, reason := range reasons {
			if combination&(1<<i) != 0 {
				why = append(why, reason)
			}
		}
		table[combination] = framework.NewStatus(shortageCode(combination&tooSmall != 0), "NodeResourcesFit", why...)
	}
	return table
}()

func shortageCode(tooSmall bool) framework.Code {
	if tooSmall {
		return framework.Unresolvable
	}
	return framework.Unschedulable
}

// scoringRequests are the amounts that the pod is scored with, in the order of the resources.
var scoringRequests = framework.NewKey[[]int64]()

func (*nodeResourcesFit) Name() string { return "NodeResourcesFit" }

// PreFilter has nothing to compute: PodInfo has the requests.
func (*nodeResourcesFit) PreFilter(context.Context, *framework.CycleState, *framework.PodInfo) (sets.Set[string], *framework.Status) {
	return nil, nil
}

func (f *nodeResourcesFit) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	return f.fits(&pod.Requests, node)
}

// Shape leaves out pods with resources that are not the node's alone.
func (*nodeResourcesFit) Shape(b []byte, _ *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	cpu, memory := pod.ScoringRequests()
	r := &pod.Requests
	return framework.AppendInts(b, r.MilliCPU, r.Memory, r.EphemeralStorage, cpu, memory), len(r.Scalar) == 0
}

// fits says whether what is left of node's resources is enough for requests.
func (f *nodeResourcesFit) fits(requests *framework.Resource, node *framework.NodeInfo) *framework.Status {
	short := 0
	lacks := func(what int, want, all, used int64) {
		if want > 0 && want > all-used {
			short |= what
			if want > all {
				short |= tooSmall
			}
		}
	}
	if int64(len(node.Pods))+1 > node.Allocatable.Pods {
		short = shortOfPods
	}
	has, used := &node.Allocatable, &node.Requested
	lacks(shortOfCPU, requests.MilliCPU, has.MilliCPU, used.MilliCPU)
	lacks(shortOfMemory, requests.Memory, has.Memory, used.Memory)
	lacks(shortOfStorage, requests.EphemeralStorage, has.EphemeralStorage, used.EphemeralStorage)
	if len(requests.Scalar) == 0 {
		return insufficient[short]
	}
	var names []v1.ResourceName
	small := short&tooSmall != 0
	for name, want := range requests.Scalar {
		if want > 0 && want > has.Scalar[name]-used.Scalar[name] && !f.ignores(name) && !f.allocated(name, has) {
			names = append(names, name)
			small = small || want > has.Scalar[name]
		}
	}
	if len(names) == 0 {
		return insufficient[short]
	}
	reasons := append([]string(nil), insufficient[short].Reasons()...)
	for _, name := range names {
		reasons = append(reasons, fmt.Sprintf("Insufficient %v", name))
	}
	return framework.NewStatus(shortageCode(small), "NodeResourcesFit", reasons...)
}

func (f *nodeResourcesFit) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	cpu, memory := pod.ScoringRequests()
	amounts := make([]int64, len(f.resources))
	for i, r := range f.resources {
		switch r.Name {
		case v1.ResourceCPU:
			amounts[i] = cpu
		case v1.ResourceMemory:
			amounts[i] = memory
		default:
			amounts[i] = pod.Requests.Amount(r.Name)
		}
	}
	scoringRequests.Write(state, amounts)
	return nil
}

// Score is the weighted mean of how much of each resource is left, or used when packing, with the
// pod on the node.
func (f *nodeResourcesFit) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	var sum, weights int64
	amounts := scoringRequests.Read(state)
	for i, r := range f.resources {
		has := node.Allocatable.Amount(r.Name)
		if has == 0 || amounts[i] == 0 && framework.IsScalar(r.Name) {
			continue
		}
		used := amounts[i]
		switch r.Name {
		case v1.ResourceCPU:
			used += node.NonZeroMilliCPU
		case v1.ResourceMemory:
			used += node.NonZeroMemory
		default:
			used += node.Requested.Amount(r.Name)
		}
		if len(f.shape) > 0 {
			if score := f.shaped(used, has); score > 0 { // else it does not count at all
				sum += r.Weight * score
				weights += r.Weight
			}
			continue
		}
		if f.packing {
			// A node can be over-full here, for pods without requests count too.
			sum += r.Weight * (min(used, has) * framework.MaxScore / has)
		} else if used <= has {
			sum += r.Weight * ((has - used) * framework.MaxScore / has)
		}
		weights += r.Weight
	}
	if weights == 0 {
		return 0, nil
	}
	if len(f.shape) > 0 {
		return int64(math.Round(float64(sum) / float64(weights))), nil
	}
	return sum / weights, nil
}

// shaped is the score by the shape of a resource of which used are used.
func (f *nodeResourcesFit) shaped(used, has int64) int64 {
	percent := int64(100)
	if used <= has {
		percent = used * 100 / has
	}
	for i, p := range f.shape {
		if percent > p.Used {
			continue
		}
		if i == 0 {
			return p.Score
		}
		before := f.shape[i-1]
		return before.Score + (p.Score-before.Score)*(percent-before.Used)/(p.Used-before.Used)
	}
	return f.shape[len(f.shape)-1].Score
}

func (f *nodeResourcesFit) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Pod, Action: framework.Delete | framework.UpdatePodScaleDown},
			Hint:  framework.OnPod(freesWhatIsNeeded),
		}, {
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeAllocatable},
			Hint:  framework.OnNode(f.growsEnough),
		}, {
			Event: framework.Event{Kind: framework.DeviceClass, Action: framework.Add | framework.Update},
			Hint:  offersWhatIsNeeded,
		},
	}
}

// offersWhatIsNeeded says whether a DeviceClass that came, or got another name for its devices, is
// of an extended resource that the pod requests.
func offersWhatIsNeeded(pod *framework.PodInfo, before, after any) bool {
	class, ok := after.(*resourcev1.DeviceClass)
	if !ok {
		return false
	}
	name, needs := ptr.Deref(class.Spec.ExtendedResourceName, ""), pod.Requests.Scalar
	if old, ok := before.(*resourcev1.DeviceClass); ok {
		if ptr.Deref(old.Spec.ExtendedResourceName, "") == name {
			return false
		}
	} else if needs[v1.ResourceName(resourcev1.ResourceDeviceClassPrefix+class.Name)] > 0 {
		return true
	}
	return name != "" && needs[v1.ResourceName(name)] > 0
}

func freesWhatIsNeeded(pod *framework.PodInfo, old, new *v1.Pod) bool {
	switch {
	case new == nil:
		return onNode(old)
	case new.UID == pod.Pod().UID:
		return true // it needs less itself
	case new.Spec.NodeName == "" || old == nil:
		return false
	}
	was, is := framework.NewResource(framework.Requests(old)), framework.NewResource(framework.Requests(new))
	needs := &pod.Requests
	if needs.MilliCPU > 0 && was.MilliCPU > is.MilliCPU || needs.Memory > 0 && was.Memory > is.Memory ||
		needs.EphemeralStorage > 0 && was.EphemeralStorage > is.EphemeralStorage {
		return true
	}
	for name, n := range needs.Scalar {
		if n > 0 && was.Scalar[name] > is.Scalar[name] {
			return true
		}
	}
	return false
}

func (f *nodeResourcesFit) growsEnough(pod *framework.PodInfo, old, new *v1.Node) bool {
	if new == nil {
		return false
	}
	empty := framework.NewNodeInfo(0, &framework.Generations{})
	empty.SetNode(new)
	if !f.fits(&pod.Requests, empty).OK() {
		return false
	}
	if old == nil {
		return true
	}
	was, is := framework.NewResource(old.Status.Allocatable), &empty.Allocatable
	needs := &pod.Requests
	if is.Pods > was.Pods || needs.MilliCPU > 0 && is.MilliCPU > was.MilliCPU || needs.Memory > 0 && is.Memory > was.Memory ||
		needs.EphemeralStorage > 0 && is.EphemeralStorage > was.EphemeralStorage {
		return true
	}
	for name, n := range needs.Scalar {
		if n > 0 && (is.Scalar[name] > was.Scalar[name] || f.allocated(name, is)) {
			return true
		}
	}
	return false
}
