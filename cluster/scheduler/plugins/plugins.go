// Package plugins holds the scheduler's own plugins, one file each, and the profile that they make
// by default with those of package upstream. What each rejects, prefers and says is the same as of
// upstream's plugin of that name; a test compares them over random clusters.
package plugins

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins/preemption"
	"github.com/coracle-project/coracle/cluster/scheduler/upstream"
)

// Args are the settings of plugins that have any. The zero value is upstream's defaults.
type Args struct {
	// Packing fills nodes up instead of spreading pods over them.
	Packing bool
	// Shape, if any, is what NodeResourcesFit scores a resource by instead: from how much of it is
	// used, in percent, to a score of 0 to 100, linear between points.
	Shape []ShapePoint
	// Resources are what NodeResourcesFit scores by; CPU and memory at equal weights if empty.
	Resources []ResourceWeight
	// Ignored are extended resources, and IgnoredGroups what names of such begin with, that
	// NodeResourcesFit does not look for.
	Ignored       []v1.ResourceName
	IgnoredGroups []string
	// HardAffinityWeight is what a required affinity of a pod on a node to the new one counts; 1 if
	// nil.
	HardAffinityWeight *int32
	// IgnorePreferred has preferences of pods on nodes not count for a new one without any.
	IgnorePreferred bool
	// AddedAffinity is what each pod has to meet, or prefers, in addition to its own.
	AddedAffinity *v1.NodeAffinity
	// Spread, if not nil, are the constraints of pods that have none, instead of upstream's.
	Spread *[]v1.TopologySpreadConstraint
	// Preemption says on how many nodes making room is tried.
	Preemption preemption.Args
	// BindVolumes is how long a pod waits for its volumes at most; 10 minutes if nil.
	BindVolumes *time.Duration
	// NoDevices is that the profile does not allocate devices: NodeResourcesFit then leaves no
	// extended resource to DynamicResources.
	NoDevices bool
	// FindDevices is how long devices are looked for on one node, 10 seconds if nil; PrepareDevices
	// how long a pod waits for its devices to be ready, 10 minutes if nil.
	FindDevices, PrepareDevices *time.Duration
}

// ResourceWeight says how much a resource counts.
type ResourceWeight struct {
	Name   v1.ResourceName
	Weight int64
}

// ShapePoint is a point of Args.Shape.
type ShapePoint struct{ Used, Score int64 }

// Default returns the plugins that a profile has by default, in upstream's order and weights.
func Default(h *framework.Handle, args Args) []framework.Enabled {
	if len(args.Resources) == 0 {
		args.Resources = []ResourceWeight{{v1.ResourceCPU, 1}, {v1.ResourceMemory, 1}}
	}
	devices := upstream.DeviceClasses(h)
	if args.NoDevices {
		devices = func(v1.ResourceName) bool { return false }
	}
	return []framework.Enabled{
		{Plugin: schedulingGates{}},
		{Plugin: prioritySort{}},
		{Plugin: nodeUnschedulable{}},
		{Plugin: nodeName{}},
		{Plugin: taintToleration{}, Weight: 3},
		{Plugin: newNodeAffinity(args), Weight: 2},
		{Plugin: nodePorts{}},
		{Plugin: newNodeResourcesFit(args, devices), Weight: 1},
		{Plugin: newVolumeRestrictions(h)},
		{Plugin: upstream.NewNodeVolumeLimits(h)},
		{Plugin: upstream.NewVolumeBinding(h, valueOr(args.BindVolumes, 10*time.Minute))},
		{Plugin: newVolumeZone(h)},
		{Plugin: newPodTopologySpread(h, args), Weight: 2},
		{Plugin: newInterPodAffinity(h, args), Weight: 2},
		{
			Plugin: upstream.NewDynamicResources(h, valueOr(args.FindDevices, 10*time.Second), valueOr(args.PrepareDevices, 10*time.Minute)),
			Weight: 2,
		},
		{Plugin: preemption.New(h, args.Preemption)},
		{Plugin: balancedAllocation{}, Weight: 1},
		{Plugin: imageLocality{}, Weight: 1},
		{Plugin: defaultBinder{h}},
		{Plugin: nodeDeclaredFeatures{}},
	}
}

// quiet is for upstream's helpers that would log what their result says anyway.
var quiet = klog.Logger{}

// normalizeReversed is framework.Normalize for scores of which the lowest is best.
func normalizeReversed(scores []int64) {
	framework.Normalize(scores)
	for i, s := range scores {
		scores[i] = framework.MaxScore - s
	}
}

// onNode says whether a pod takes room on a node, or is about to.
func onNode(pod *v1.Pod) bool { return pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" }
