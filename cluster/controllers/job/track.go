package job

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

// mostListed is how many pods are listed as uncounted at a time, so that the list stays below some
// 20 kB and a big Job's sync does not keep others waiting.
const mostListed = 500

// track counts finished pods in the steps that the package's description gives, and ends the Job if
// its outcome is settled and nothing is left to count or to wait for.
func (r *run) track(ctx context.Context) error {
	holding := sets.New[types.UID]() // pods that have their finalizer
	for _, pod := range r.pods {
		if tracked(pod) {
			holding.Insert(pod.UID)
		}
	}
	r.settle(holding)
	counted, more := r.list()
	if r.indexed() {
		r.job.Status.Succeeded = int32(r.done.total())
		r.job.Status.CompletedIndexes = r.done.String()
		r.job.Status.FailedIndexes = nil
		if r.perIndex() {
			lost := r.lost.String()
			r.job.Status.FailedIndexes = &lost
		}
	}
	final := r.interim()
	flushed, err := r.flush(ctx)
	if err != nil {
		return err
	}
	if flushed {
		r.backoffs.remember(r.key, r.backoff)
	}

	freed, err := r.free(ctx, counted)
	holding = holding.Difference(freed)
	r.settle(holding)
	if err == nil && !more && final != nil && r.nothingLeft() {
		r.end(final)
	} else {
		final = nil
	}
	if _, flushErr := r.flush(ctx); flushErr != nil {
		return flushErr
	}
	if final != nil {
		r.announce(final)
	}
	return err
}

// settle takes the listed pods that have no finalizer any more from the list and counts them.
func (r *run) settle(holding sets.Set[types.UID]) {
	listed := r.job.Status.UncountedTerminatedPods
	count := func(uids []types.UID, counter *int32) []types.UID {
		var left []types.UID
		for _, uid := range uids {
			if holding.Has(uid) {
				left = append(left, uid)
			} else {
				*counter++
			}
		}
		return left
	}
	listed.Succeeded = count(listed.Succeeded, &r.job.Status.Succeeded)
	listed.Failed = count(listed.Failed, &r.job.Status.Failed)
}

// list enters pods that are to be counted, and returns all whose finalizer may go then. more means
// that there are further ones for the next sync.
func (r *run) list() (free []*corev1.Pod, more bool) {
	listed := r.job.Status.UncountedTerminatedPods
	fails := r.outcome != nil && r.outcome.Type != batchv1.JobSuccessCriteriaMet
	newIndexes := 0
	pods := r.pods
	if r.indexed() {
		pods = slices.SortedStableFunc(slices.Values(pods), func(a, b *corev1.Pod) int { return indexOf(a) - indexOf(b) })
	}
	for _, pod := range pods {
		failed := r.podFailed(pod)
		if !tracked(pod) || !r.mayGo(pod, failed) {
			continue
		}
		free = append(free, pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && !r.listedFailed.Has(pod.UID):
			switch {
			case !r.indexed():
				if !r.listedSucceeded.Has(pod.UID) {
					listed.Succeeded = append(listed.Succeeded, pod.UID)
				}
			case r.validIndex(pod) && !r.before.has(indexOf(pod)):
				newIndexes++
			}
		case failed || fails: // of a Job that fails, whatever still lives has failed
			if !r.listedFailed.Has(pod.UID) && r.validIndex(pod) && r.matchFailure(pod).counts {
				listed.Failed = append(listed.Failed, pod.UID)
			}
		}
		if newIndexes+len(listed.Succeeded)+len(listed.Failed) >= mostListed {
			return free, true
		}
	}
	return free, false
}

// mayGo reports whether a pod's finalizer may be removed: it has finished, or the whole Job has. A
// failed pod whose replacement has to take over its count of failures stays until that exists.
func (r *run) mayGo(pod *corev1.Pod, failed bool) bool {
	if r.job.DeletionTimestamp != nil || r.outcome != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !failed {
		return false
	}
	kept := r.kept[indexOf(pod)]
	return kept == nil || kept.UID != pod.UID
}

// interim sets the condition that announces the outcome, and returns the one that will seal it, nil
// if the Job goes on.
func (r *run) interim() *batchv1.JobCondition {
	o := r.outcome
	if o == nil {
		return nil
	}
	if o.Type == batchv1.JobFailed { // announced before
		return o
	}
	if find(r.job.Status.Conditions, o.Type) == nil {
		r.job.Status.Conditions = append(r.job.Status.Conditions, *o)
	}
	if o.Type == batchv1.JobFailureTarget {
		return r.condition(batchv1.JobFailed, o.Reason, o.Message)
	}
	return r.condition(batchv1.JobComplete, o.Reason, o.Message)
}

// free removes the finalizers of pods, and returns those that have none now. A pod that is gone
// needs none.
func (r *run) free(ctx context.Context, pods []*corev1.Pod) (sets.Set[types.UID], error) {
	ok := make([]bool, len(pods))
	_, err := podcontrol.All(len(pods), func(i int) error {
		err := r.controller.pods.Patch(ctx, r.key, pods[i], untrack)
		if apierrors.IsNotFound(err) {
			err = nil
		}
		ok[i] = err == nil
		return err
	})
	freed := sets.New[types.UID]()
	for i, pod := range pods {
		if ok[i] {
			freed.Insert(pod.UID)
		}
	}
	return freed, err
}

func (r *run) nothingLeft() bool {
	listed := r.job.Status.UncountedTerminatedPods
	return len(listed.Succeeded)+len(listed.Failed) == 0 && r.terminating == 0
}

// end sets the final condition.
func (r *run) end(final *batchv1.JobCondition) {
	r.set(final.Type, final.Status, final.Reason, final.Message)
	if final.Type == batchv1.JobComplete {
		r.job.Status.CompletionTime = &final.LastTransitionTime
	}
}

// announce tells how the Job ended, once that is written.
func (r *run) announce(final *batchv1.JobCondition) {
	if final.Type != batchv1.JobComplete {
		r.events.Event(r.job, corev1.EventTypeWarning, final.Reason, final.Message)
		return
	}
	if n := r.job.Spec.Completions; n != nil && r.job.Status.Succeeded > *n {
		r.events.Event(r.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
	}
	r.events.Event(r.job, corev1.EventTypeNormal, "Completed", "Job completed")
}

// flush writes the status if the API has another. The Job is then as the API answered.
func (r *run) flush(ctx context.Context) (written bool, err error) {
	if apiequality.Semantic.DeepEqual(r.job.Status, r.stored) {
		return false, nil
	}
	job, err := r.kube.BatchV1().Jobs(r.job.Namespace).UpdateStatus(ctx, r.job, metav1.UpdateOptions{})
	if err != nil {
		return false, err
	}
	r.writes.Wrote(r.key, r.cache, job.ResourceVersion)
	r.job, r.stored = job, *job.Status.DeepCopy()
	if job.Status.UncountedTerminatedPods == nil {
		job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	return true, nil
}
