package preemption

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// evictions are the pods for which others are being removed.
type evictions struct {
	mu sync.Mutex
	// running has by the waiting pod's UID the last victim, nil while others are before it. The
	// last is known, because its deletion may be seen before the call that deletes it returns, and
	// nothing would wake the waiting pod after that.
	running map[types.UID]*v1.Pod
}

func newEvictions() evictions { return evictions{running: make(map[types.UID]*v1.Pod)} }

// evicting says whether the pod has to wait for calls that remove others for it.
func (e *evictions) evicting(uid types.UID, pods corelisters.PodLister) bool {
	e.mu.Lock()
	last, running := e.running[uid]
	e.mu.Unlock()
	if !running || last == nil {
		return running
	}
	pod, err := pods.Pods(last.Namespace).Get(last.Name)
	return err == nil && pod.UID == last.UID && pod.DeletionTimestamp == nil
}

func (e *evictions) set(uid types.UID, last *v1.Pod) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running[uid] = last
}

func (e *evictions) end(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, uid)
}

// evict removes c's victims for pod, alongside what follows.
func (pl *Plugin) evict(pod *v1.Pod, c candidate) {
	var victims []*v1.Pod
	for _, v := range c.victims {
		if v.DeletionTimestamp == nil {
			victims = append(victims, v)
		}
	}
	if len(victims) == 0 {
		return
	}
	pl.set(pod.UID, nil)
	pl.handle.Background(func(ctx context.Context) {
		err := pl.evictGuarded(ctx, pod, c.node, victims)
		pl.end(pod.UID)
		if err != nil {
			pl.handle.Log.Warn("preemption", "pod", pod.Namespace+"/"+pod.Name, "node", c.node, "err", err)
			// No deletion may come that would wake it.
			pl.handle.Failed(pod)
			return
		}
		// Nor may one come if the victims were gone already, or were only waiting in memory.
		pl.handle.Reopened(pod, name)
	})
}

// evictGuarded turns a panic into an error: the pod would be kept waiting forever.
func (pl *Plugin) evictGuarded(ctx context.Context, pod *v1.Pod, node string, victims []*v1.Pod) (err error) {
	defer func() {
		if r := recover(); r != nil {
			pl.handle.Log.Error("panic", "pod", pod.Namespace+"/"+pod.Name, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return pl.evictAll(ctx, pod, node, victims)
}

func (pl *Plugin) evictAll(ctx context.Context, pod *v1.Pod, node string, victims []*v1.Pod) error {
	// Pods of lower priority that hoped for this node should look for another now.
	for _, n := range pl.handle.NominatedTo(node) {
		p := n.Pod()
		if corev1helpers.PodPriority(p) >= corev1helpers.PodPriority(pod) || p.Status.NominatedNodeName == "" {
			continue
		}
		status := p.Status.DeepCopy()
		status.NominatedNodeName = ""
		if err := framework.PatchStatus(ctx, pl.handle.Kube, p, status); ignoreGone(err) != nil {
			pl.handle.Log.Warn("preemption: clear nomination", "pod", p.Namespace+"/"+p.Name, "err", err)
		}
	}
	last := len(victims) - 1
	for i, v := range victims {
		if i == last {
			pl.set(pod.UID, v)
		}
		if err := pl.evictOne(ctx, pod, node, v); err != nil {
			return err
		}
	}
	return nil
}

func (pl *Plugin) evictOne(ctx context.Context, pod *v1.Pod, node string, victim *v1.Pod) error {
	note := fmt.Sprintf("Preempted by pod %v on node %v", pod.UID, node)
	if pl.handle.LetGo(victim) {
		// It has not been bound yet, so there is nothing to delete: it just looks for another node.
		pl.handle.Recorder.Eventf(victim, pod, v1.EventTypeNormal, "Preempted", "Preempting", "%s", note+" (in kube-scheduler memory).")
		return nil
	}
	status := victim.Status.DeepCopy()
	if podutil.UpdatePodCondition(status, &v1.PodCondition{
		Type:               v1.DisruptionTarget,
		ObservedGeneration: podutil.CalculatePodConditionObservedGeneration(&victim.Status, victim.Generation, v1.DisruptionTarget),
		Status:             v1.ConditionTrue,
		Reason:             v1.PodReasonPreemptionByScheduler,
		Message:            pod.Spec.SchedulerName + ": preempting to accommodate a higher priority pod",
	}) {
		if err := framework.PatchStatus(ctx, pl.handle.Kube, victim, status); err != nil {
			return ignoreGone(err)
		}
	}
	err := pl.handle.Kube.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(victim.UID))})
	if apierrors.IsConflict(err) {
		return nil // it is gone, and another pod has its name
	}
	if err != nil {
		return ignoreGone(err)
	}
	pl.handle.Recorder.Eventf(victim, pod, v1.EventTypeNormal, "Preempted", "Preempting", "%s", note)
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
