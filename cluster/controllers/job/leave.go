package job

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/controller/job/util"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
)

// freePods removes the tracking finalizer from the pods of a Job of this name that will not be
// counted any more: it is over, or gone, or was replaced by another of its name. job is the Job
// that has the name now, nil if none has.
func (c *controller) freePods(ctx context.Context, key, namespace, name string, job *batchv1.Job) error {
	for _, pod := range adoption.Named[*corev1.Pod](c.podCache, namespace, kind.Kind, name) {
		ref := metav1.GetControllerOfNoCopy(pod)
		if !tracked(pod) || ref.APIVersion != kind.GroupVersion().String() ||
			job != nil && ref.UID == job.UID && !util.IsJobFinished(job) {
			continue
		}
		if err := c.pods.Patch(ctx, key, pod, untrack); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// freeStray removes the tracking finalizer from the pod with this name if it has no controller: its
// Job was deleted without it. A Job that adopts it gives it a finalizer again.
func (c *controller) freeStray(ctx context.Context, name string) error {
	obj, ok, err := c.podCache.GetByKey(name)
	if err != nil || !ok {
		return err
	}
	pod := obj.(*corev1.Pod)
	if metav1.GetControllerOfNoCopy(pod) != nil || !tracked(pod) {
		return nil
	}
	if err := c.pods.Patch(ctx, strayPrefix+name, pod, untrack); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// expire deletes a finished Job whose time to live is over, and comes back for one whose is not.
// The time is checked again on the Job as the API has it: it may have been prolonged just now.
func (c *controller) expire(ctx context.Context, key string, job *batchv1.Job) error {
	left, ok := timeToLive(job)
	if !ok {
		return nil
	}
	if left > 0 {
		c.queue.AddAfter(key, left)
		return nil
	}
	jobs := c.finished.BatchV1().Jobs(job.Namespace)
	fresh, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
	if err == nil {
		if left, ok := timeToLive(fresh); !ok || left > 0 || fresh.UID != job.UID {
			return nil // its event is on the way
		}
		foreground := metav1.DeletePropagationForeground
		err = jobs.Delete(ctx, job.Name, metav1.DeleteOptions{
			PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &fresh.UID},
		})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		c.writes.Deleted(key, c.cache, job)
	}
	return err
}

// timeToLive is what is left of ttlSecondsAfterFinished; ok is false for Jobs that are not to be
// deleted by it.
func timeToLive(job *batchv1.Job) (left time.Duration, ok bool) {
	if job.DeletionTimestamp != nil || job.Spec.TTLSecondsAfterFinished == nil {
		return 0, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return time.Until(c.LastTransitionTime.Add(time.Duration(*job.Spec.TTLSecondsAfterFinished) * time.Second)), true
		}
	}
	return 0, false
}
