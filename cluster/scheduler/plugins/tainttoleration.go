package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// taintToleration keeps pods off nodes whose taints they do not tolerate, and prefers nodes
// without taints that they would rather not tolerate.
type taintToleration struct{}

var (
	errTaint = framework.NewStatus(framework.Unresolvable, "TaintToleration", "node(s) had untolerated taint(s)")
	// preferTolerations are the pod's tolerations of PreferNoSchedule.
	preferTolerations = framework.NewKey[[]v1.Toleration]()
)

func (taintToleration) Name() string { return "TaintToleration" }

func (taintToleration) Filter(_ *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	if tolerated(pod.Pod(), node.Taints) {
		return nil
	}
	return errTaint
}

func (taintToleration) Shape(b []byte, _ *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	return framework.AppendTolerations(b, pod.Pod().Spec.Tolerations), true
}

// tolerated says whether pod tolerates all taints that keep pods off.
func tolerated(pod *v1.Pod, taints []v1.Taint) bool {
	for i := range taints {
		taint := &taints[i]
		if (taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute) &&
			!corev1helpers.TolerationsTolerateTaint(quiet, pod.Spec.Tolerations, taint, false) {
			return false
		}
	}
	return true
}

func (taintToleration) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	var prefer []v1.Toleration
	for _, t := range pod.Pod().Spec.Tolerations {
		if t.Effect == "" || t.Effect == v1.TaintEffectPreferNoSchedule {
			prefer = append(prefer, t)
		}
	}
	preferTolerations.Write(state, prefer)
	return nil
}

// Score counts the taints that the pod would rather not tolerate.
func (taintToleration) Score(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	taints := node.Taints
	if len(taints) == 0 {
		return 0, nil
	}
	var n int64
	prefer := preferTolerations.Read(state)
	for i := range taints {
		if taints[i].Effect == v1.TaintEffectPreferNoSchedule &&
			!corev1helpers.TolerationsTolerateTaint(quiet, prefer, &taints[i], false) {
			n++
		}
	}
	return n, nil
}

func (taintToleration) Normalize(_ *framework.CycleState, scores []int64, _ []*framework.NodeInfo) {
	normalizeReversed(scores)
}

func (taintToleration) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeTaint},
			Hint: framework.OnNode(func(pod *framework.PodInfo, old, new *v1.Node) bool {
				p := pod.Pod()
				return new != nil && tolerated(p, new.Spec.Taints) && (old == nil || !tolerated(p, old.Spec.Taints))
			}),
		}, {
			Event: framework.Event{Kind: framework.Pod, Action: framework.UpdatePodToleration},
			Hint:  framework.OnPod(func(pod *framework.PodInfo, _, new *v1.Pod) bool { return new != nil && new.UID == pod.Pod().UID }),
		},
	}
}
