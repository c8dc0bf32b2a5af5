package plugins

import (
	"context"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeName has pods that name a node go there only.
type nodeName struct{}

var errNodeName = framework.NewStatus(framework.Unresolvable, "NodeName", "node(s) didn't match the requested node name")

func (nodeName) Name() string { return "NodeName" }

// PreFilter skips pods that name none, which are all that the queue lets through.
func (nodeName) PreFilter(_ context.Context, _ *framework.CycleState, pod *framework.PodInfo) (sets.Set[string], *framework.Status) {
	if pod.Pod().Spec.NodeName == "" {
		return nil, framework.Skipped
	}
	return nil, nil
}

func (nodeName) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if name := pod.Pod().Spec.NodeName; name != "" && name != node.Node().Name {
		return errNodeName
	}
	return nil
}

func (nodeName) Events() []framework.EventHint {
	return []framework.EventHint{{Event: framework.Event{Kind: framework.Node, Action: framework.Add}}}
}
