// Package podgc removes pods that nothing else will remove: those on nodes that no longer exist,
// those that are being deleted without ever having been bound, those that are being deleted on a
// node that an administrator declared out of service, and the oldest of those that have ended once
// there are too many.
//
// Keys are what can need removing: "node/NAME", "pod/NAMESPACE/NAME" and "ended". A node that is
// missing is given 40 seconds to come back, and the server is asked before its pods go. Pods that
// end are counted at most every 20 seconds. A pod that is removed while it has not ended is marked
// Failed first; an error on one pod does not keep the others, and is repeated with the frame's
// back-off.
package podgc

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"
	nodeutil "k8s.io/kubernetes/pkg/util/node"
	statuspatch "k8s.io/kubernetes/pkg/util/pod"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

const (
	workers = 2
	// quarantine is how long a node must be missing before its pods go.
	quarantine = 40 * time.Second
	// countEvery is the least time between two counts of pods that have ended.
	countEvery = 20 * time.Second
	// DefaultThreshold is how many pods that have ended may exist.
	DefaultThreshold = 12500

	endedKey = "ended"
	nodeKey  = "node/"
	podKey   = "pod/"
)

type controller struct {
	set       *client.Set
	pods      corelisters.PodLister
	byNode    cache.Indexer
	nodes     corelisters.NodeLister
	frame     *frame.Controller
	threshold int

	mu sync.Mutex
	// missing holds since when a node with pods has not been there.
	missing map[string]time.Time
}

// New returns the controller. threshold is how many pods that have ended may exist; 0 lets any
// number.
func New(set *client.Set, threshold int) (*frame.Controller, error) {
	pods, nodes := set.Informers.Core().V1().Pods(), set.Informers.Core().V1().Nodes()
	if err := upstream.AddPodNodeNameIndexer(pods.Informer()); err != nil {
		return nil, err
	}
	c := &controller{
		set: set, pods: pods.Lister(), byNode: pods.Informer().GetIndexer(), nodes: nodes.Lister(),
		threshold: threshold, missing: map[string]time.Time{},
	}
	c.frame = frame.New("podgc", workers, set.Logger(), c.sync)
	c.frame.Watch(nodes.Informer(), func(obj any) []string {
		if node, ok := obj.(*corev1.Node); ok {
			return []string{nodeKey + node.Name}
		}
		return nil
	})
	c.frame.Watch(pods.Informer(), c.keysOf)
	return c.frame, nil
}

// keysOf returns what may need removing since a pod is as it is.
func (c *controller) keysOf(obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if ended(pod) && c.threshold > 0 {
		c.frame.AddAfter(endedKey, countEvery)
	}
	if pod.Spec.NodeName == "" {
		if pod.DeletionTimestamp != nil {
			return []string{podKey + pod.Namespace + "/" + pod.Name}
		}
		return nil
	}
	node, err := c.nodes.Get(pod.Spec.NodeName)
	if err != nil || pod.DeletionTimestamp != nil && outOfService(node) {
		return []string{nodeKey + pod.Spec.NodeName}
	}
	return nil
}

func (c *controller) sync(ctx context.Context, key string) error {
	if key == endedKey {
		return c.removeEnded(ctx)
	}
	if name, ok := strings.CutPrefix(key, nodeKey); ok {
		return c.syncNode(ctx, name)
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, podKey), "/")
	pod, err := c.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || pod.DeletionTimestamp == nil || pod.Spec.NodeName != "" {
		return err
	}
	return c.remove(ctx, pod, nil)
}

func (c *controller) syncNode(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if err == nil {
		c.forget(name)
		if !outOfService(node) {
			return nil
		}
		return c.removeFrom(ctx, name, nil, func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
	}
	if on, err := c.byNode.IndexKeys(upstream.PodNodeNameKeyIndex, name); err != nil || len(on) == 0 {
		c.forget(name)
		return err
	}
	if left := quarantine - time.Since(c.missingSince(name)); left > 0 {
		c.frame.AddAfter(nodeKey+name, left)
		return nil
	}
	if _, err := c.set.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	return c.removeFrom(ctx, name, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
	}, func(*corev1.Pod) bool { return true })
}

func (c *controller) missingSince(node string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.missing[node]; !known {
		c.missing[node] = time.Now()
	}
	return c.missing[node]
}

func (c *controller) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.missing, node)
}

// removeFrom removes the pods of a node that match.
func (c *controller) removeFrom(ctx context.Context, node string, condition *corev1.PodCondition, match func(*corev1.Pod) bool) error {
	on, err := c.byNode.ByIndex(upstream.PodNodeNameKeyIndex, node)
	if err != nil {
		return err
	}
	var errs []error
	for _, obj := range on {
		if pod := obj.(*corev1.Pod); match(pod) {
			errs = append(errs, c.remove(ctx, pod, condition))
		}
	}
	return errors.Join(errs...)
}

// removeEnded removes the oldest pods that have ended, those that were evicted before others.
func (c *controller) removeEnded(ctx context.Context) error {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(pod *corev1.Pod) bool { return !ended(pod) })
	excess := len(all) - c.threshold
	if excess <= 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		if evicted(a) != evicted(b) {
			if evicted(a) {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var errs []error
	for _, pod := range all[:excess] {
		errs = append(errs, c.remove(ctx, pod, nil))
	}
	return errors.Join(errs...)
}

// remove deletes a pod at once. One that has not ended is marked Failed, and with condition.
func (c *controller) remove(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition) error {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		status := pod.Status.DeepCopy()
		status.Phase = corev1.PodFailed
		status.ObservedGeneration = podutil.CalculatePodStatusObservedGeneration(pod)
		if condition != nil {
			own := *condition
			own.ObservedGeneration = podutil.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, own.Type)
			podutil.UpdatePodCondition(status, &own)
		}
		_, _, _, err := statuspatch.PatchPodStatus(ctx, c.set.Kube, pod.Namespace, pod.Name, pod.UID, pod.Status, *status)
		if err != nil {
			return ignoreGone(err)
		}
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		return nil // deleted for good already; a finalizer keeps it, and its removal is not ours
	}
	o := metav1.NewDeleteOptions(0)
	o.Preconditions = metav1.NewUIDPreconditions(string(pod.UID)) // another pod may have the name by now
	return ignoreGone(c.set.Kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *o))
}

// ignoreGone returns nil if the pod is gone, also if another one has its name.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// ended reports whether a pod's phase is none of those of a pod that may yet run.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodPending && pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodUnknown
}

func evicted(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted"
}

// outOfService reports whether an administrator declared a node that is not ready to be off.
func outOfService(node *corev1.Node) bool {
	return !nodeutil.IsNodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == corev1.TaintNodeOutOfService
	})
}
