// Package plugins holds the scheduler's own plugins, one file each, and the profile that they make
// by default. What each rejects, prefers and says is the same as of upstream's plugin of that name;
// a test compares them over random clusters.
package plugins

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
	"github.com/coracle-project/coracle/cluster/scheduler/plugins/preemption"
)

// Args are the settings of plugins that have any.
type Args struct {
	// Packing fills nodes up instead of spreading pods over them.
	Packing bool
	// Resources are what NodeResourcesFit scores by; CPU and memory at equal weights if empty.
	Resources []ResourceWeight
}

// ResourceWeight says how much a resource counts.
type ResourceWeight struct {
	Name   v1.ResourceName
	Weight int64
}

// Default returns the plugins that a profile has by default, in upstream's order and weights.
func Default(h *framework.Handle, args Args) []framework.Enabled {
	if len(args.Resources) == 0 {
		args.Resources = []ResourceWeight{{v1.ResourceCPU, 1}, {v1.ResourceMemory, 1}}
	}
	return []framework.Enabled{
		{Plugin: schedulingGates{}},
		{Plugin: prioritySort{}},
		{Plugin: nodeUnschedulable{}},
		{Plugin: nodeName{}},
		{Plugin: taintToleration{}, Weight: 3},
		{Plugin: nodeAffinity{}, Weight: 2},
		{Plugin: nodePorts{}},
		{Plugin: newNodeResourcesFit(args), Weight: 1},
		{Plugin: newVolumeRestrictions(h)},
		{Plugin: newVolumeBinding(h)},
		{Plugin: newVolumeZone(h)},
		{Plugin: newPodTopologySpread(h), Weight: 2},
		{Plugin: newInterPodAffinity(h), Weight: 2},
		{Plugin: dynamicResources{}},
		{Plugin: preemption.New(h)},
		{Plugin: balancedAllocation{}, Weight: 1},
		{Plugin: imageLocality{}, Weight: 1},
		{Plugin: defaultBinder{h}},
	}
}

// quiet is for upstream's helpers that would log what their result says anyway.
var quiet = klog.Logger{}

// normalize brings scores, none below 0, from 0..their maximum to 0..MaxScore.
func normalize(scores []int64) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	if highest == 0 {
		return
	}
	for i, s := range scores {
		scores[i] = framework.MaxScore * s / highest
	}
}

// normalizeReversed is normalize for scores of which the lowest is best.
func normalizeReversed(scores []int64) {
	normalize(scores)
	for i, s := range scores {
		scores[i] = framework.MaxScore - s
	}
}

// onNode says whether a pod takes room on a node, or is about to.
func onNode(pod *v1.Pod) bool { return pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" }
