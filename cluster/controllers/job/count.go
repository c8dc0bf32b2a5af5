package job

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"
)

// count works out what the pods amount to.
func (r *run) count() {
	listed := r.job.Status.UncountedTerminatedPods
	r.listedSucceeded, r.listedFailed = sets.New(listed.Succeeded...), sets.New(listed.Failed...)
	r.running = int32(len(r.active))
	r.ready = readyOf(r.active)
	r.terminating = upstream.CountTerminatingPods(r.pods)

	succeeded := r.unlisted(r.listedSucceeded, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	failed := r.unlisted(r.listedFailed, r.podFailed)
	r.succeeded = r.job.Status.Succeeded + int32(len(succeeded)+len(r.listedSucceeded))
	r.failed = r.job.Status.Failed + int32(len(r.listedFailed))
	for _, pod := range failed {
		if r.matchFailure(pod).counts {
			r.failed++
		}
	}
	r.backoff = r.backoffs.with(r.key, succeeded, failed)
	if r.indexed() {
		r.countIndexes()
	}
}

// unlisted returns the pods that is holds for, of those that are neither counted nor listed as
// about to be. A pod of an indexed Job without a valid index never is.
func (r *run) unlisted(listed sets.Set[types.UID], is func(*corev1.Pod) bool) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, pod := range r.pods {
		if tracked(pod) && !listed.Has(pod.UID) && r.validIndex(pod) && is(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// podFailed reports whether a pod counts as failed. One that is being deleted does before it stops,
// unless only pods that have failed are replaced: a lost node's pods might never get to fail.
func (r *run) podFailed(pod *corev1.Pod) bool {
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		return true
	case r.replacesOnlyFailed():
		return false
	}
	return pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

func readyOf(pods []*corev1.Pod) int32 {
	n := int32(0)
	for _, pod := range pods {
		if podutil.IsPodReady(pod) {
			n++
		}
	}
	return n
}

// restarts is the sum of container restarts of pods that live: with the restart policy OnFailure
// those are the failures.
func restarts(pods []*corev1.Pod) int32 {
	n := int32(0)
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range pod.Status.InitContainerStatuses {
			n += c.RestartCount
		}
		for _, c := range pod.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n
}

// complete reports whether enough pods have succeeded and none is left. A Job without a number of
// completions needs one success, after which its other pods are waited for.
func (r *run) complete() bool {
	if r.running > 0 {
		return false
	}
	if r.job.Spec.Completions == nil {
		return r.succeeded > 0
	}
	return r.succeeded >= *r.job.Spec.Completions
}
