package nodelifecycle

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/util/taints"
)

// taintOf is the key of the taint that a condition's status calls for.
var taintOf = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady: {
		corev1.ConditionFalse:   corev1.TaintNodeNotReady,
		corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
	},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
}

// ours are the keys of all NoSchedule taints that this controller adds and takes off.
var ours = func() map[string]bool {
	keys := map[string]bool{corev1.TaintNodeUnschedulable: true}
	for _, byStatus := range taintOf {
		for key := range maps.Values(byStatus) {
			keys[key] = true
		}
	}
	return keys
}()

// noSchedule makes a node's NoSchedule taints what its conditions and spec.unschedulable say.
func (c *controller) noSchedule(ctx context.Context, node *corev1.Node) error {
	var want []corev1.Taint
	for _, condition := range node.Status.Conditions {
		if key := taintOf[condition.Type][condition.Status]; key != "" {
			want = append(want, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	if node.Spec.Unschedulable {
		want = append(want, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	have := taints.TaintSetFilter(node.Spec.Taints, func(taint *corev1.Taint) bool {
		return taint.Effect == corev1.TaintEffectNoSchedule && ours[taint.Key]
	})
	add, remove := taints.TaintSetDiff(want, have)
	return c.swap(ctx, node, add, remove)
}

// swap adds and removes taints of a node.
func (c *controller) swap(ctx context.Context, node *corev1.Node, add, remove []*corev1.Taint) error {
	now := metav1.Now()
	for _, taint := range add {
		taint.TimeAdded = &now
	}
	if err := upstream.AddOrUpdateTaintOnNode(ctx, c.set.Kube, node.Name, add...); err != nil {
		return fmt.Errorf("tainting node %s: %w", node.Name, err)
	}
	if err := upstream.RemoveTaintOffNode(ctx, c.set.Kube, node.Name, node, remove...); err != nil {
		return fmt.Errorf("removing taints of node %s: %w", node.Name, err)
	}
	return nil
}

func executeTaint(key string) *corev1.Taint {
	return &corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

// noExecute makes a node's NoExecute taint what its readiness says, when its zone allows.
func (c *controller) noExecute(ctx context.Context, node *corev1.Node) error {
	ready := condition(node, corev1.NodeReady)
	if ready == nil {
		return nil
	}
	notReady, unreachable := executeTaint(corev1.TaintNodeNotReady), executeTaint(corev1.TaintNodeUnreachable)
	var add, opposite *corev1.Taint
	switch ready.Status {
	case corev1.ConditionTrue:
		return c.swap(ctx, node, nil, []*corev1.Taint{unreachable, notReady})
	case corev1.ConditionFalse:
		add, opposite = notReady, unreachable
	default:
		add, opposite = unreachable, notReady
	}
	switch {
	case c.allDown():
		return c.swap(ctx, node, nil, []*corev1.Taint{unreachable, notReady})
	case taints.TaintExists(node.Spec.Taints, opposite): // no new eviction, only another reason
	case taints.TaintExists(node.Spec.Taints, add):
		return nil
	default:
		if wait, ok := c.mayTaint(node); !ok {
			if wait > 0 {
				c.frame.AddAfter(node.Name, wait)
			}
			return nil // or when the zone recovers
		}
	}
	return c.swap(ctx, node, []*corev1.Taint{add}, []*corev1.Taint{opposite})
}

// oldLabels are labels that old clients still read, with those that they repeat.
var oldLabels = map[string]string{
	"beta.kubernetes.io/os":   corev1.LabelOSStable,
	"beta.kubernetes.io/arch": corev1.LabelArchStable,
}

// matchLabels makes a node's old labels say what the labels say that replaced them.
func (c *controller) matchLabels(node *corev1.Node) error {
	update := map[string]string{}
	for old, stable := range oldLabels {
		if value, ok := node.Labels[stable]; ok && node.Labels[old] != value {
			update[old] = value
		}
	}
	if len(update) == 0 {
		return nil
	}
	return upstream.AddOrUpdateLabelsOnNode(c.set.Kube, node.Name, update)
}
