// Package replicaset keeps as many pods of each ReplicaSet alive as it asks for.
//
// A sync claims the pods that match the selector (adopting orphans, releasing strays), creates what
// is missing or deletes what is too much, and writes the status. A sync that created or deleted
// pods writes no status: those pods' events bring the next sync, which sees them and writes once.
// While pods become ready one after the other, the status follows every 80 ms, and at once with
// the last of them.
// A failed create or delete is shown by the condition ReplicaFailure and tried again after a
// back-off.
//
// A pod that is being deleted, or that has finished, does not count as a replica.
package replicaset

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller"
	"k8s.io/utils/clock"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

type controller struct {
	queue    *frame.Controller
	kube     kubernetes.Interface
	sets     appslisters.ReplicaSetLister
	setCache cache.Indexer
	podCache cache.Indexer
	pods     *podcontrol.Control
	writes   *freshness.Writes
	pace     pace
}

// New returns the controller of ReplicaSets.
func New(set *client.Set) *frame.Controller {
	sets := set.Informers.Apps().V1().ReplicaSets()
	pods := set.Informers.Core().V1().Pods().Informer()
	adoption.MustIndex(pods)
	adoption.MustIndex(sets.Informer())
	events, stop := set.Recorder("replicaset-controller", "")

	c := &controller{
		kube: set.Kube, sets: sets.Lister(),
		setCache: sets.Informer().GetIndexer(), podCache: pods.GetIndexer(),
		writes: freshness.New(set.Logger()),
	}
	c.pods = &podcontrol.Control{Kind: kind, Kube: set.Kube, Events: events, Writes: c.writes, Cache: c.podCache}
	guarded := c.writes.Guard(c.sync, func(key string, d time.Duration) { c.queue.AddAfter(key, d) })
	c.queue = frame.New("replicaset", 5, set.Logger(), guarded)
	c.queue.Watch(sets.Informer(), frame.Self)
	c.queue.Watch(pods, adoption.Concerns(kind.Kind, c.sets.GetPodReplicaSets))
	c.queue.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	return c.queue
}

func (c *controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	rs, err := c.sets.ReplicaSets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		c.pace.forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return nil // validation refuses such selectors; trying again would not help
	}
	candidates := adoption.Candidates[*corev1.Pod](c.podCache, kind.Kind, rs)
	active, err := c.claim(ctx, key, rs, selector, upstream.FilterActivePods(klog.Background(), candidates))
	if err != nil {
		return err
	}
	terminating := upstream.FilterClaimedPods(rs, selector, upstream.FilterTerminatingPods(candidates))

	var scaleErr error
	if rs.DeletionTimestamp == nil {
		if scaleErr = c.scale(ctx, rs, active); scaleErr == nil && c.writes.Acted(key) {
			return nil // what was written brings the next sync
		}
	}
	now := time.Now()
	status := statusOf(rs, active, terminating, scaleErr, now)
	if left := c.pace.left(key, rs, &status, now); left > 0 && scaleErr == nil {
		c.queue.AddAfter(key, left)
		return nil
	}
	if err := c.writeStatus(ctx, key, rs, status); err != nil {
		return err
	}
	if scaleErr != nil {
		return scaleErr
	}
	if rs.Spec.MinReadySeconds > 0 && status.ReadyReplicas != status.AvailableReplicas {
		// No event tells that a pod has been ready for long enough.
		next := time.Duration(rs.Spec.MinReadySeconds) * time.Second
		if check := upstream.FindMinNextPodAvailabilityCheck(active, rs.Spec.MinReadySeconds, now, clock.RealClock{}); check != nil {
			next = *check
		}
		c.queue.AddAfter(key, next)
	}
	return nil
}

func (c *controller) claim(ctx context.Context, key string, rs *appsv1.ReplicaSet, selector labels.Selector,
	pods []*corev1.Pod,
) ([]*corev1.Pod, error) {
	return adoption.Claim[*corev1.Pod]{
		Owner: rs, Kind: kind, Selector: selector,
		Read: func(ctx context.Context) (metav1.Object, error) {
			return c.kube.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, pod *corev1.Pod, patch []byte) error {
			return c.pods.Patch(ctx, key, pod, patch)
		},
	}.Of(ctx, pods)
}
