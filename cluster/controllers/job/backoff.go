package job

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"
)

// The wait before a failed pod's replacement: ten seconds after the first failure, doubling with
// each failure that no success has come after.
const (
	firstBackoff = 10 * time.Second
	mostBackoff  = 10 * time.Minute
)

// backoff is the failures of a Job since its last success.
type backoff struct {
	failures int32
	last     time.Time // of the last failure
}

// left is the time until a replacement may be created.
func (b backoff) left(now time.Time) time.Duration {
	if b.failures == 0 {
		return 0
	}
	wait := firstBackoff
	for i := int32(1); i < b.failures && wait < mostBackoff; i++ {
		wait *= 2
	}
	return max(b.last.Add(min(wait, mostBackoff)).Sub(now), 0)
}

// backoffs remembers the backoff of each Job. It is not kept in the API: a controller that starts
// again starts without, and at worst replaces a pod too early.
type backoffs struct {
	mu    sync.Mutex
	byKey map[string]backoff
}

func newBackoffs() *backoffs { return &backoffs{byKey: map[string]backoff{}} }

// with is the Job's backoff with these pods that finished lately. It is not remembered before they
// are in the Job's status, or the next attempt would add them again.
func (b *backoffs) with(key string, succeeded, failed []*corev1.Pod) backoff {
	b.mu.Lock()
	at := b.byKey[key]
	b.mu.Unlock()

	var success time.Time
	if len(succeeded) > 0 {
		at = backoff{}
		success = finishTime(slices.MaxFunc(succeeded, byFinish))
	}
	for _, pod := range failed {
		if end := finishTime(pod); len(succeeded) == 0 || end.After(success) {
			at.failures++
			if end.After(at.last) {
				at.last = end
			}
		}
	}
	return at
}

func (b *backoffs) remember(key string, at backoff) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at == (backoff{}) {
		delete(b.byKey, key)
	} else {
		b.byKey[key] = at
	}
}

func (b *backoffs) forget(key string) { b.remember(key, backoff{}) }

func byFinish(a, b *corev1.Pod) int { return finishTime(a).Compare(finishTime(b)) }

// finishTime is when a pod finished: its last container, or if that is not known, when it was not
// ready any more, or when its deletion was asked for, or at least when it was created.
func finishTime(pod *corev1.Pod) time.Time {
	if end, ok := lastExit(pod); ok {
		return end
	}
	if _, c := podutil.GetPodCondition(&pod.Status, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse &&
		!c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		return pod.DeletionTimestamp.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	}
	return pod.CreationTimestamp.Time
}

// lastExit is when the last of a pod's containers ended, sidecars included, if all have.
func lastExit(pod *corev1.Pod) (end time.Time, ok bool) {
	sidecar := map[string]bool{}
	for _, c := range pod.Spec.InitContainers {
		sidecar[c.Name] = podutil.IsRestartableInitContainer(&c)
	}
	exits := func(statuses []corev1.ContainerStatus, counts func(name string) bool) bool {
		for _, c := range statuses {
			if !counts(c.Name) {
				continue
			}
			if c.State.Terminated == nil || c.State.Terminated.FinishedAt.IsZero() {
				return false
			}
			if at := c.State.Terminated.FinishedAt.Time; at.After(end) {
				end = at
			}
		}
		return true
	}
	ok = exits(pod.Status.ContainerStatuses, func(string) bool { return true }) &&
		exits(pod.Status.InitContainerStatuses, func(name string) bool { return sidecar[name] })
	return end, ok && !end.IsZero()
}
