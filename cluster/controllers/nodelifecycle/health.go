package nodelifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"
)

// health is what is known of a node's signs of life, by this machine's clock: nodes' own clocks
// are compared with each other only.
type health struct {
	uid types.UID
	// seen is when the last sign of life arrived.
	seen      time.Time
	renewed   time.Time // what the Lease said then
	heartbeat time.Time // what the Ready condition said then
	hadReady  bool      // whether there was one
	// ready is the Ready condition's status after the last look.
	ready corev1.ConditionStatus
	// away is since when that has not been True.
	away time.Time
	// tellPods: the node was found silent while it was ready, and its pods do not know yet.
	tellPods bool
}

// watchedConditions become Unknown together.
var watchedConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

func condition(node *corev1.Node, of corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == of {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// alive notes that a node's Lease has come or changed. A time before the last one counts, too: the
// node's clock was set back. Upstream ignores such renewals until it has found the node silent, so
// the node is NotReady once, until its kubelet reports again.
func (c *controller) alive(node string) {
	lease, err := c.leases.Get(node)
	if err != nil || lease.Spec.RenewTime == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.health.Entries[node]; h != nil && !lease.Spec.RenewTime.Time.Equal(h.renewed) {
		h.renewed, h.seen = lease.Spec.RenewTime.Time, time.Now()
	}
}

// registered starts to watch over a node that was not known.
func (c *controller) registered(node *corev1.Node) {
	c.mu.Lock()
	known := c.health.Entries[node.Name]
	if known == nil || known.uid != node.UID {
		known = nil
		c.health.Entries[node.Name] = &health{uid: node.UID}
	}
	c.mu.Unlock()
	if known == nil {
		c.event(node.Name, node.UID, corev1.EventTypeNormal, "RegisteredNode", "Registered Node %v in Controller", node.Name)
		c.alive(node.Name)
	}
}

func (c *controller) removed(node string) {
	c.mu.Lock()
	h := c.health.Entries[node]
	c.health.Delete(node)
	c.countLocked(node, nil)
	c.mu.Unlock()
	c.judgeZones() // also if it was never looked at: it counted from when it came
	if h != nil {
		c.event(node, h.uid, corev1.EventTypeNormal, "RemovingNode", "Removing Node %v from Controller", node)
	}
}

func (c *controller) event(node string, uid types.UID, kind, reason, format string, args ...any) {
	c.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: uid},
		kind, reason, "Node %s event: "+format, append([]any{node}, args...)...)
}

// silence takes in what a node says of itself and returns for how long it may stay silent from
// now on; 0 or less: for too long already.
func (c *controller) silence(node *corev1.Node) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, now := c.health.Entries[node.Name], time.Now()
	if h == nil {
		return c.grace // removed meanwhile
	}
	ready := condition(node, corev1.NodeReady)
	grace := c.grace
	switch {
	case ready == nil:
		grace = startupGrace
		if h.seen.IsZero() {
			h.seen = node.CreationTimestamp.Time
		}
		h.hadReady = false
	case !h.hadReady, !h.heartbeat.Equal(ready.LastHeartbeatTime.Time):
		h.hadReady, h.heartbeat, h.seen = true, ready.LastHeartbeatTime.Time, now
	}
	return h.seen.Add(grace).Sub(now)
}

// checkHealth makes the conditions of a node that has been silent for too long Unknown, and sets
// the timer for the others. It returns the node as it is now, nil if it is gone or has
// changed meanwhile.
func (c *controller) checkHealth(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	left := c.silence(node)
	if left > 0 {
		c.frame.AddAfter(node.Name, left+time.Millisecond)
	} else if changed := fallenSilent(node, metav1.Now()); changed != nil {
		updated, err := c.set.Kube.CoreV1().Nodes().UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil, nil // the event of what changed it is on its way
		}
		if err != nil {
			return nil, err
		}
		wasReady := readyStatus(node) == corev1.ConditionTrue
		node = updated
		c.mu.Lock()
		if h := c.health.Entries[node.Name]; h != nil { // this write is no sign of life
			h.hadReady, h.heartbeat, h.tellPods = true, condition(node, corev1.NodeReady).LastHeartbeatTime.Time, wasReady
		}
		c.mu.Unlock()
		if wasReady {
			c.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
				corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: %s", node.Name, "NodeNotReady")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.health.Entries[node.Name]; h != nil {
		h.ready = readyStatus(node)
		switch {
		case h.ready == corev1.ConditionTrue:
			h.away, h.tellPods = time.Time{}, false
		case h.away.IsZero():
			h.away = time.Now()
		}
	}
	return node, nil
}

func readyStatus(node *corev1.Node) corev1.ConditionStatus {
	if ready := condition(node, corev1.NodeReady); ready != nil {
		return ready.Status
	}
	return corev1.ConditionUnknown
}

// fallenSilent returns a copy of node with all watched conditions Unknown, nil if Ready was.
func fallenSilent(node *corev1.Node, now metav1.Time) *corev1.Node {
	if ready := condition(node, corev1.NodeReady); ready != nil && ready.Status == corev1.ConditionUnknown {
		return nil
	}
	node = node.DeepCopy()
	for _, of := range watchedConditions {
		there := condition(node, of)
		switch {
		case there == nil:
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: of, Status: corev1.ConditionUnknown,
				Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.",
				LastHeartbeatTime: node.CreationTimestamp, LastTransitionTime: now,
			})
		case there.Status != corev1.ConditionUnknown:
			there.Status, there.LastTransitionTime = corev1.ConditionUnknown, now
			there.Reason, there.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
		}
	}
	return node
}

// markPods makes the pods of a node that has fallen silent not ready: no one else can tell. While
// its kubelet speaks, the pods' readiness is the kubelet's affair.
func (c *controller) markPods(ctx context.Context, node *corev1.Node) error {
	c.mu.Lock()
	h := c.health.Entries[node.Name]
	todo := h != nil && h.tellPods
	c.mu.Unlock()
	if !todo {
		return nil
	}
	on, err := c.byNode.ByIndex(upstream.PodNodeNameKeyIndex, node.Name)
	if err != nil {
		return err
	}
	var errs []error
	for _, obj := range on {
		errs = append(errs, c.markPod(ctx, obj.(*corev1.Pod)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.tellPods = false
	return nil
}

// markPod makes a pod not ready.
func (c *controller) markPod(ctx context.Context, pod *corev1.Pod) error {
	i := slices.IndexFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool { return condition.Type == corev1.PodReady })
	if i < 0 || pod.Status.Conditions[i].Status == corev1.ConditionFalse {
		return nil
	}
	pod = pod.DeepCopy()
	condition := pod.Status.Conditions[i]
	condition.Status = corev1.ConditionFalse
	podutil.UpdatePodCondition(&pod.Status, &condition)
	_, err := c.set.Kube.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	return err
}

// syncPod marks a pod that was bound to a node that is not ready.
func (c *controller) syncPod(ctx context.Context, namespace, name string) error {
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil // not there yet, or no more: then the pod will be removed
	}
	if err != nil {
		return err
	}
	if ready := condition(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
		return nil
	}
	return c.markPod(ctx, pod)
}
