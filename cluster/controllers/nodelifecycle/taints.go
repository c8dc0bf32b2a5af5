package nodelifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/util/taints"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
)

// attempts bounds how often a node is written that changes meanwhile.
const attempts = 5

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

// change is what is to become of a node's labels and taints.
type change struct {
	labels      map[string]string
	add, remove []corev1.Taint
}

// noSchedule has a node's NoSchedule taints say what its conditions and spec.unschedulable say.
func (ch *change) noSchedule(node *corev1.Node) {
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
	for _, taint := range add {
		ch.add = append(ch.add, *taint)
	}
	for _, taint := range remove {
		ch.remove = append(ch.remove, *taint)
	}
}

func executeTaint(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

// noExecute has a node's NoExecute taint say what its readiness says, when its zone allows.
func (c *controller) noExecute(ch *change, node *corev1.Node) {
	ready := condition(node, corev1.NodeReady)
	if ready == nil {
		return
	}
	notReady, unreachable := executeTaint(corev1.TaintNodeNotReady), executeTaint(corev1.TaintNodeUnreachable)
	add, opposite := unreachable, notReady
	if ready.Status == corev1.ConditionFalse {
		add, opposite = notReady, unreachable
	}
	switch {
	case ready.Status == corev1.ConditionTrue, c.allDown():
		ch.remove = append(ch.remove, unreachable, notReady)
		return
	case taints.TaintExists(node.Spec.Taints, &opposite): // no new eviction, only another reason
	case taints.TaintExists(node.Spec.Taints, &add):
		return
	default:
		if wait, ok := c.mayTaint(node); !ok {
			if wait > 0 {
				c.frame.AddAfter(node.Name, wait)
			}
			return // or when the zone recovers
		}
	}
	ch.add, ch.remove = append(ch.add, add), append(ch.remove, opposite)
}

// oldLabels are labels that old clients still read, with those that they repeat.
var oldLabels = map[string]string{
	"beta.kubernetes.io/os":   corev1.LabelOSStable,
	"beta.kubernetes.io/arch": corev1.LabelArchStable,
}

// matchLabels has a node's old labels say what the labels say that replaced them.
func (ch *change) matchLabels(node *corev1.Node) {
	for old, stable := range oldLabels {
		if value, ok := node.Labels[stable]; ok && node.Labels[old] != value {
			if ch.labels == nil {
				ch.labels = map[string]string{}
			}
			ch.labels[old] = value
		}
	}
}

// apply makes a change in one request, or none if there is nothing to change. A new node has
// several writers, so conflicts are usual: the node is read again at once, because a pause for each
// of a thousand nodes that join takes longer than all the rest, and because mayTaint has already
// used the zone's rate.
func (c *controller) apply(ctx context.Context, node *corev1.Node, ch change) error {
	nodes, name, uid := c.set.Kube.CoreV1().Nodes(), node.Name, node.UID
	for attempt := 1; ; attempt++ {
		var err error
		if write := ch.of(node); write != nil {
			err = c.write.Apply(ctx, name, *write)
		}
		if apierrors.IsConflict(err) && attempt < attempts {
			if node, err = nodes.Get(ctx, name, metav1.GetOptions{}); err == nil && node.UID == uid {
				continue
			}
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("labels and taints of node %s: %w", name, err)
		}
		return nil // also if it is another node of this name: that comes with its own event
	}
}

// of is the change of this version of a node, nil if it has nothing to change.
func (ch *change) of(node *corev1.Node) *nodepatch.Change {
	all := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(taint corev1.Taint) bool {
		return slices.ContainsFunc(ch.remove, func(r corev1.Taint) bool { return r.MatchTaint(&taint) })
	})
	changed := len(all) < len(node.Spec.Taints)
	for _, taint := range ch.add {
		if !taints.TaintExists(all, &taint) {
			taint.TimeAdded = ptr.To(metav1.Now())
			all, changed = append(all, taint), true
		}
	}
	if !changed && len(ch.labels) == 0 {
		return nil
	}
	write := &nodepatch.Change{ResourceVersion: node.ResourceVersion, Labels: ch.labels}
	if changed {
		write.Taints = &all
	}
	return write
}
