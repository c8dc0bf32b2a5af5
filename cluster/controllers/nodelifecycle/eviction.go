package nodelifecycle

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
	upstream "k8s.io/kubernetes/pkg/controller"
	statuspatch "k8s.io/kubernetes/pkg/util/pod"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

const evictionWorkers = 8

type evictor struct {
	set      *client.Set
	nodes    corelisters.NodeLister
	pods     corelisters.PodLister
	byNode   cache.Indexer
	frame    *frame.Controller
	recorder record.EventRecorder

	mu sync.Mutex
	// due holds the pods that are to be deleted although they tolerate their node's taints, since
	// they do so for a time only.
	due map[string]eviction
}

type eviction struct {
	uid types.UID
	at  time.Time
}

// NewEviction returns the controller that deletes pods which do not tolerate a NoExecute taint of
// their node, or no longer; its keys are pods.
func NewEviction(set *client.Set) (*frame.Controller, error) {
	pods, nodes := set.Informers.Core().V1().Pods(), set.Informers.Core().V1().Nodes()
	if err := upstream.AddPodNodeNameIndexer(pods.Informer()); err != nil {
		return nil, err
	}
	recorder, flush := set.Recorder("taint-eviction-controller", "")
	e := &evictor{
		set: set, nodes: nodes.Lister(), pods: pods.Lister(), byNode: pods.Informer().GetIndexer(),
		recorder: recorder, due: map[string]eviction{},
	}
	e.frame = frame.New("tainteviction", evictionWorkers, set.Logger(), e.sync)
	feed.Changes(e.frame, nodes.Informer(), e.podsOf)
	feed.Changes(e.frame, pods.Informer(), e.podChanged)
	e.frame.Also(func(ctx context.Context) { <-ctx.Done(); flush() })
	return e.frame, nil
}

func executeTaints(node *corev1.Node) []corev1.Taint {
	if node == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(taint corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectNoExecute
	})
}

// podsOf returns the pods of a node whose NoExecute taints changed.
func (e *evictor) podsOf(old, obj any) (keys []string) {
	before, _ := old.(*corev1.Node)
	node, _ := obj.(*corev1.Node)
	if node == nil || equality.Semantic.DeepEqual(executeTaints(before), executeTaints(node)) {
		return nil
	}
	keys, _ = e.byNode.IndexKeys(upstream.PodNodeNameKeyIndex, node.Name)
	return keys
}

// podChanged returns the key of a pod whose node, tolerations or existence changed and that a
// taint could concern.
func (e *evictor) podChanged(old, obj any) []string {
	before, _ := old.(*corev1.Pod)
	pod, _ := obj.(*corev1.Pod)
	switch {
	case pod == nil:
		return frame.Self(before)
	case pod.Spec.NodeName == "",
		before != nil && before.Spec.NodeName == pod.Spec.NodeName &&
			equality.Semantic.DeepEqual(before.Spec.Tolerations, pod.Spec.Tolerations):
		return nil
	}
	return frame.Self(pod)
}

func (e *evictor) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := e.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		e.cancel(namespace, name)
		return nil
	}
	if err != nil {
		return err
	}
	node, err := e.nodes.Get(pod.Spec.NodeName)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	taints := executeTaints(node)
	if len(taints) == 0 {
		e.cancel(namespace, name)
		return nil
	}
	tolerated, used := helper.GetMatchingTolerations(klog.Background(), taints, pod.Spec.Tolerations)
	if !tolerated {
		e.take(key)
		return e.evict(ctx, pod)
	}
	limit, limited := toleratedFor(used)
	if !limited {
		e.cancel(namespace, name)
		return nil
	}
	if left := e.schedule(key, pod.UID, limit); left > 0 {
		e.frame.AddAfter(key, left)
		return nil
	}
	if err := e.evict(ctx, pod); err != nil {
		return err
	}
	e.take(key)
	return nil
}

// toleratedFor returns how long all of these tolerations last; limited is false if forever.
func toleratedFor(tolerations []corev1.Toleration) (limit time.Duration, limited bool) {
	for _, toleration := range tolerations {
		if toleration.TolerationSeconds == nil {
			continue
		}
		d := max(0, time.Duration(*toleration.TolerationSeconds)*time.Second)
		if !limited || d < limit {
			limit, limited = d, true
		}
	}
	return limit, limited
}

// schedule notes when a pod is to go, unless that was noted already, and returns how long that is.
func (e *evictor) schedule(key string, uid types.UID, in time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if noted, ok := e.due[key]; !ok || noted.uid != uid {
		e.due[key] = eviction{uid, time.Now().Add(in)}
	}
	return time.Until(e.due[key].at)
}

// take forgets when a pod was to go, and returns whether that was noted.
func (e *evictor) take(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.due[key]
	delete(e.due, key)
	return ok
}

func (e *evictor) cancel(namespace, name string) {
	if key := namespace + "/" + name; e.take(key) {
		e.recorder.Eventf(podReference(namespace, name), corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s", key)
	}
}

func podReference(namespace, name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name}
}

// evict marks a pod and deletes it.
func (e *evictor) evict(ctx context.Context, cached *corev1.Pod) error {
	e.recorder.Eventf(podReference(cached.Namespace, cached.Name), corev1.EventTypeNormal, "TaintManagerEviction",
		"Marking for deletion Pod %s/%s", cached.Namespace, cached.Name)
	pods := e.set.Kube.CoreV1().Pods(cached.Namespace)
	pod, err := pods.Get(ctx, cached.Name, metav1.GetOptions{})
	if err != nil || pod.UID != cached.UID {
		return ignoreNotFound(err)
	}
	status := pod.Status.DeepCopy()
	if podutil.UpdatePodCondition(status, &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "DeletionByTaintManager", Message: "Taint manager: deleting due to NoExecute taint",
		ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(&pod.Status, pod.Generation, corev1.DisruptionTarget),
	}) {
		if _, _, _, err := statuspatch.PatchPodStatus(ctx, e.set.Kube, pod.Namespace, pod.Name, pod.UID, pod.Status, *status); err != nil {
			return ignoreNotFound(err)
		}
	}
	return ignoreNotFound(pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
