package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodePorts keeps pods off nodes where a host port that they need is taken.
type nodePorts struct{}

var errPorts = framework.NewStatus(framework.Unschedulable, "NodePorts", "node(s) didn't have free ports for the requested pod ports")

func (nodePorts) Name() string { return "NodePorts" }

func (nodePorts) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (sets.Set[string], *framework.Status) {
	if len(pod.HostPorts) == 0 {
		return nil, framework.Skipped
	}
	return nil, nil
}

func (nodePorts) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	for _, p := range pod.HostPorts {
		if node.PortTaken(p) {
			return errPorts
		}
	}
	return nil
}

func (nodePorts) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Pod, Action: framework.Delete},
			Hint: framework.OnPod(func(pod *framework.PodInfo, old, _ *v1.Pod) bool {
				if old == nil || !onNode(old) {
					return false
				}
				for _, freed := range framework.HostPorts(old) {
					for _, p := range pod.HostPorts {
						if p.Conflicts(freed) {
							return true
						}
					}
				}
				return false
			}),
		},
		{Event: framework.Event{Kind: framework.Node, Action: framework.Add}},
	}
}
