// Package job runs the pods of each Job until enough of them have succeeded, or too many failed.
//
// No pod may be counted twice or missed, whatever dies when. So every pod carries the finalizer
// batch.kubernetes.io/job-tracking, which keeps it in the API until it is counted:
//
//  1. finished pods are entered by UID in status.uncountedTerminatedPods, and the status is written;
//  2. their finalizers are removed;
//  3. those without finalizer are taken from the list and added to succeeded or failed, and the
//     status is written.
//
// A controller that dies in between finds in the list which pods it was about to count. Indexed
// Jobs need no list for successes: an index that is in completedIndexes is not counted again.
//
// A Job ends in two steps as well: an interim condition (FailureTarget, SuccessCriteriaMet) says
// that the outcome is settled, and makes the remaining pods go; the final one (Failed, Complete) is
// set when all of them are gone and counted.
//
//	controller.go      what wakes a Job, and the order of a sync
//	count.go           what its pods amount to
//	outcome.go         whether it is over, by limits, deadlines and policies
//	manage.go          creating and deleting pods
//	track.go           the three steps above
//	indexed.go         indexed Jobs; indexes.go has the sets of indexes
//	failurepolicy.go   podFailurePolicy
//	backoff.go         how long failed pods are waited for
//	leave.go           finished and deleted Jobs: stray finalizers, time to live
package job

import (
	"context"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/job/util"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/controllers/internal/podcontrol"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// batch is how long events of pods are gathered before their Job is synced: pods of a Job tend to
// start and to end together, and counting takes two writes of the status however many there are.
const batch = 50 * time.Millisecond

// strayPrefix marks keys that name a pod, not a Job: one without controller that still has the
// tracking finalizer.
const strayPrefix = "pod:"

type controller struct {
	queue    *frame.Controller
	kube     kubernetes.Interface
	finished kubernetes.Interface
	events   record.EventRecorder
	jobs     batchlisters.JobLister
	cache    cache.Indexer // of Jobs
	podCache cache.Indexer
	pods     *podcontrol.Control
	writes   *freshness.Writes
	backoffs *backoffs
}

// New returns the controller of Jobs. It deletes Jobs whose time to live has passed with finished,
// since upstream has a controller of its own for that, and the role of this one does not delete
// Jobs.
func New(set *client.Set, finished kubernetes.Interface) *frame.Controller {
	jobs := set.Informers.Batch().V1().Jobs()
	pods := set.Informers.Core().V1().Pods().Informer()
	adoption.MustIndex(pods)
	events, stop := set.Recorder("job-controller", "")

	c := &controller{
		kube: set.Kube, finished: finished, events: events, jobs: jobs.Lister(),
		cache: jobs.Informer().GetIndexer(), podCache: pods.GetIndexer(),
		writes: freshness.New(set.Logger()), backoffs: newBackoffs(),
	}
	c.pods = &podcontrol.Control{Kind: kind, Kube: set.Kube, Events: events, Writes: c.writes, Cache: c.podCache}
	guarded := c.writes.Guard(c.sync, func(key string, d time.Duration) { c.queue.AddAfter(key, d) })
	c.queue = frame.New("job", 5, set.Logger(), guarded)
	c.queue.Watch(jobs.Informer(), frame.Self)
	c.queue.Watch(pods, c.concernsPod)
	c.queue.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	return c.queue
}

// concernsPod wakes the Job that owns a pod, or those that might adopt it, after the batch period.
func (c *controller) concernsPod(obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	if metav1.GetControllerOfNoCopy(pod) != nil {
		for _, key := range frame.Owner(kind.Kind)(pod) {
			c.queue.AddAfter(key, batch)
		}
		return nil
	}
	if jobs, err := c.jobs.GetPodJobs(pod); err == nil {
		for _, job := range jobs {
			c.queue.AddAfter(cache.MetaObjectToName(&job).String(), batch)
		}
	}
	if tracked(pod) {
		return []string{strayPrefix + cache.MetaObjectToName(pod).String()}
	}
	return nil
}

// tracked reports whether a pod has the tracking finalizer: it is not counted yet.
func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// run is one sync of a Job that is not over.
type run struct {
	*controller
	key string
	now time.Time
	// job is a copy whose status the sync works on; stored is the status that the API has.
	job    *batchv1.Job
	stored batchv1.JobStatus

	pods   []*corev1.Pod
	active []*corev1.Pod // neither finished nor being deleted, as the sync began

	// What the pods amount to, including those that are not counted in the status yet.
	running, ready, terminating int32 // kept up with what the sync creates and deletes
	succeeded, failed           int32
	// listed are the UIDs that the status had as uncounted when the sync began.
	listedSucceeded, listedFailed sets.Set[types.UID]
	backoff                       backoff

	// Of indexed Jobs: the indexes that succeeded according to the status, and with those of pods
	// that are not counted yet; the indexes that failed for good; and the failed pods that are kept
	// until their replacements, which continue their counts, exist.
	before, done intervals
	lost         intervals
	kept         map[int]*corev1.Pod

	// outcome is the condition that says how the Job ends, nil as long as it goes on.
	outcome *batchv1.JobCondition
}

func (c *controller) sync(ctx context.Context, key string) error {
	if pod, isStray := strings.CutPrefix(key, strayPrefix); isStray {
		return c.freeStray(ctx, pod)
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	job, err := c.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.backoffs.forget(key)
		c.writes.Forget(key)
		return c.freePods(ctx, key, namespace, name, nil)
	}
	if err != nil {
		return err
	}
	if by := job.Spec.ManagedBy; by == nil || *by == batchv1.JobControllerName {
		if err := c.freePods(ctx, key, namespace, name, job); err != nil {
			return err
		}
	} else if !util.IsJobFinished(job) {
		return nil // another controller's
	}
	if util.IsJobFinished(job) {
		c.backoffs.forget(key)
		return c.expire(ctx, key, job)
	}
	if mode := job.Spec.CompletionMode; mode != nil && *mode != batchv1.NonIndexedCompletion && *mode != batchv1.IndexedCompletion {
		c.events.Event(job, corev1.EventTypeWarning, "UnknownCompletionMode", "Skipped Job sync because completion mode is unknown")
		return nil
	}
	r := &run{controller: c, key: key, now: time.Now(), job: job.DeepCopy(), stored: job.Status}
	return r.sync(ctx)
}

func (r *run) sync(ctx context.Context) error {
	if r.job.Status.UncountedTerminatedPods == nil {
		r.job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	if err := r.claimPods(ctx); err != nil {
		return err
	}
	if r.job.Status.StartTime == nil && !r.suspended() {
		r.job.Status.StartTime = &metav1.Time{Time: r.now}
	}
	r.count()
	r.judge()
	var manageErr error
	if r.outcome != nil {
		manageErr = r.deleteActive(ctx)
	} else {
		managing := r.job.DeletionTimestamp == nil
		if managing {
			manageErr = r.manage(ctx)
		}
		if r.complete() {
			r.outcome = r.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		} else if managing {
			r.noteSuspension()
		}
	}
	r.job.Status.Active, r.job.Status.Ready, r.job.Status.Terminating = r.running, &r.ready, &r.terminating
	if err := r.track(ctx); err != nil {
		return err
	}
	return manageErr
}

// claimPods gets the Job's pods. An adopted pod is looked at as if it had its finalizer already.
func (r *run) claimPods(ctx context.Context) error {
	selector, err := metav1.LabelSelectorAsSelector(r.job.Spec.Selector)
	if err != nil {
		return err
	}
	r.pods, err = adoption.Claim[*corev1.Pod]{
		Owner: r.job, Kind: kind, Selector: selector, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Read: func(ctx context.Context) (metav1.Object, error) {
			return r.kube.BatchV1().Jobs(r.job.Namespace).Get(ctx, r.job.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, pod *corev1.Pod, patch []byte) error {
			return r.controller.pods.Patch(ctx, r.key, pod, patch)
		},
	}.Of(ctx, adoption.Candidates[*corev1.Pod](r.podCache, kind.Kind, r.job))
	if err != nil {
		return err
	}
	for i, pod := range r.pods {
		if !metav1.IsControlledBy(pod, r.job) && !tracked(pod) {
			r.pods[i] = pod.DeepCopy()
			r.pods[i].Finalizers = append(r.pods[i].Finalizers, batchv1.JobTrackingFinalizer)
		}
	}
	r.active = upstream.FilterActivePods(klog.Background(), r.pods)
	return nil
}

func (r *run) suspended() bool { return r.job.Spec.Suspend != nil && *r.job.Spec.Suspend }

func (r *run) indexed() bool {
	return r.job.Spec.CompletionMode != nil && *r.job.Spec.CompletionMode == batchv1.IndexedCompletion
}

// perIndex reports whether each index has its own limit of failures.
func (r *run) perIndex() bool { return r.indexed() && r.job.Spec.BackoffLimitPerIndex != nil }

// replacesOnlyFailed reports whether a pod that is being deleted is replaced, and counted as
// failed, only once it has stopped.
func (r *run) replacesOnlyFailed() bool {
	p := r.job.Spec.PodReplacementPolicy
	return p != nil && *p == batchv1.Failed || r.job.Spec.PodFailurePolicy != nil
}
