package plugins

import (
	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeUnschedulable keeps pods off cordoned nodes, but for those that tolerate the taint of such a
// node.
type nodeUnschedulable struct{}

var (
	errUnschedulable   = framework.NewStatus(framework.Unresolvable, "NodeUnschedulable", "node(s) were unschedulable")
	taintUnschedulable = &v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}
)

func (nodeUnschedulable) Name() string { return "NodeUnschedulable" }

func (nodeUnschedulable) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if !node.Unschedulable || toleratesUnschedulable(pod.Pod()) {
		return nil
	}
	return errUnschedulable
}

// Shape implements framework.Repeatable, as do those of other plugins.
func (nodeUnschedulable) Shape(b []byte, _ *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	return framework.AppendTolerations(b, pod.Pod().Spec.Tolerations), true
}

func toleratesUnschedulable(pod *v1.Pod) bool {
	return corev1helpers.TolerationsTolerateTaint(quiet, pod.Spec.Tolerations, taintUnschedulable, false)
}

func (nodeUnschedulable) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeTaint},
			Hint: framework.OnNode(func(_ *framework.PodInfo, old, new *v1.Node) bool {
				return new != nil && !new.Spec.Unschedulable && (old == nil || old.Spec.Unschedulable)
			}),
		}, {
			Event: framework.Event{Kind: framework.Pod, Action: framework.UpdatePodToleration},
			Hint: framework.OnPod(func(pod *framework.PodInfo, _, new *v1.Pod) bool {
				return new != nil && new.UID == pod.Pod().UID && toleratesUnschedulable(new)
			}),
		},
	}
}
