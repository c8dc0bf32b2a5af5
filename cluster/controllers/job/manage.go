package job

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"

	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

// untrack is the patch that removes the tracking finalizer.
var untrack, _ = json.Marshal(map[string]any{"metadata": map[string]any{
	"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
}})

// manage creates or deletes pods, whichever is due; deletions go first.
func (r *run) manage(ctx context.Context) error {
	if r.suspended() {
		return r.remove(ctx, r.active)
	}
	want := r.wanted()
	surplus, rest := r.misplaced()
	if more := int(r.running) - int(want) - len(surplus); more > 0 {
		sort.Sort(upstream.ActivePods(rest))
		surplus = append(surplus, rest[:more]...)
	}
	if len(surplus) > 0 {
		return r.remove(ctx, surplus[:min(len(surplus), podcontrol.Burst)])
	}
	missing := want - r.running
	if r.replacesOnlyFailed() {
		missing -= r.terminating
	}
	if missing <= 0 {
		return nil
	}
	return r.create(ctx, min(int(missing), podcontrol.Burst))
}

// wanted is how many pods should be active: parallelism, but no more than completions are missing.
// Without a number of completions, no pod is started after the first success.
func (r *run) wanted() int32 {
	if r.job.Spec.Completions == nil {
		if r.succeeded > 0 {
			return r.running
		}
		return *r.job.Spec.Parallelism
	}
	return max(min(*r.job.Spec.Completions-r.succeeded, *r.job.Spec.Parallelism), 0)
}

// create makes n pods, or as many as may be made before a back-off is over; then it sees to it that
// the Job is looked at again.
func (r *run) create(ctx context.Context, n int) error {
	var indexes []int
	wait := time.Duration(0)
	if r.indexed() {
		indexes = r.pendingIndexes(n)
	}
	if r.perIndex() {
		indexes, wait = r.dueIndexes(indexes)
	} else {
		wait = r.backoff.left(r.now)
	}
	if wait > 0 {
		r.queue.AddAfter(r.key, wait)
		return nil
	}
	template := r.job.Spec.Template.DeepCopy()
	if !slices.Contains(template.Finalizers, batchv1.JobTrackingFinalizer) {
		template.Finalizers = append(template.Finalizers, batchv1.JobTrackingFinalizer)
	}
	one := func(int) (*corev1.PodTemplateSpec, string) { return template, "" }
	if r.indexed() {
		n = len(indexes)
		addIndexEnv(template)
		one = func(i int) (*corev1.PodTemplateSpec, string) {
			return r.forIndex(template, indexes[i]), namePrefix(r.job.Name, indexes[i])
		}
	}
	made, err := podcontrol.SlowStart(n, func(i int) error {
		template, prefix := one(i)
		return r.controller.pods.Create(ctx, r.job, template, prefix)
	})
	r.running += int32(made)
	return err
}

// dueIndexes returns those of indexes whose back-off is over. If there are some, the others wait
// for the events of these; if there are none, it returns how long the first one has to wait.
func (r *run) dueIndexes(indexes []int) (due []int, wait time.Duration) {
	for _, index := range indexes {
		left := time.Duration(0)
		if former := r.kept[index]; former != nil {
			left = backoff{failures: allFailures(former) + 1, last: finishTime(former)}.left(r.now)
		}
		switch {
		case left == 0:
			due = append(due, index)
		case wait == 0 || left < wait:
			wait = left
		}
	}
	if len(due) > 0 {
		return due, 0
	}
	return nil, wait
}

// remove deletes pods that are not to be counted: their finalizers go first.
func (r *run) remove(ctx context.Context, pods []*corev1.Pod) error {
	return r.deleteEach(pods, func(pod *corev1.Pod) error {
		if tracked(pod) {
			if err := r.controller.pods.Patch(ctx, r.key, pod, untrack); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("removing completion finalizer: %w", err)
			}
		}
		return r.controller.pods.Delete(ctx, r.job, pod)
	})
}

// deleteActive deletes the pods of a Job that ends, to be counted. As long as one of them cannot be
// deleted the Job has not ended.
func (r *run) deleteActive(ctx context.Context) error {
	err := r.deleteEach(r.active, func(pod *corev1.Pod) error { return r.controller.pods.Delete(ctx, r.job, pod) })
	if r.running > 0 {
		r.outcome = nil
	}
	return err
}

// deleteEach calls remove for all pods at once, and counts those that it worked for as terminating.
func (r *run) deleteEach(pods []*corev1.Pod, remove func(*corev1.Pod) error) error {
	var removed, ready atomic.Int32
	_, err := podcontrol.All(len(pods), func(i int) error {
		err := remove(pods[i])
		if err == nil {
			removed.Add(1)
			if podutil.IsPodReady(pods[i]) {
				ready.Add(1)
			}
		}
		return err
	})
	r.running -= removed.Load()
	r.terminating += removed.Load()
	r.ready -= ready.Load()
	return err
}
