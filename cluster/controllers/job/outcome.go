package job

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// judge sets r.outcome if the Job is to end. An outcome that was settled earlier is kept. Failures
// go before successes, and reasons before one another in this order; each is looked for until one
// is found.
func (r *run) judge() {
	for _, settles := range []func() *batchv1.JobCondition{
		r.settledBefore, r.failedByPolicy, r.failedByLimits, r.failedByIndexes, r.succeededByPolicy,
	} {
		if r.outcome = settles(); r.outcome != nil {
			return
		}
	}
}

func (r *run) settledBefore() *batchv1.JobCondition {
	if c := find(r.job.Status.Conditions, batchv1.JobSuccessCriteriaMet); c != nil && c.Status == corev1.ConditionTrue {
		return c
	}
	if c := find(r.job.Status.Conditions, batchv1.JobFailureTarget); c != nil && c.Status == corev1.ConditionTrue {
		return r.condition(batchv1.JobFailed, c.Reason, c.Message)
	}
	return nil
}

func (r *run) failedByPolicy() *batchv1.JobCondition {
	if r.job.Spec.PodFailurePolicy == nil {
		return nil
	}
	for _, pod := range r.pods {
		if !r.podFailed(pod) {
			continue
		}
		if m := r.matchFailure(pod); m.action == batchv1.PodFailurePolicyActionFailJob {
			return r.condition(batchv1.JobFailureTarget, batchv1.JobReasonPodFailurePolicy, m.message)
		}
	}
	return nil
}

// failedByLimits looks at backoffLimit and activeDeadlineSeconds. A deadline that is to come wakes
// the Job again.
func (r *run) failedByLimits() *batchv1.JobCondition {
	limit := *r.job.Spec.BackoffLimit
	exceeded := r.failed > limit
	if r.job.Spec.Template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure {
		n := restarts(r.pods)
		exceeded = exceeded || n >= limit && n > 0
	}
	if exceeded {
		return r.condition(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if r.job.Spec.ActiveDeadlineSeconds == nil || r.suspended() {
		return nil
	}
	left := time.Duration(*r.job.Spec.ActiveDeadlineSeconds)*time.Second - r.now.Sub(r.job.Status.StartTime.Time)
	if left <= 0 {
		return r.condition(batchv1.JobFailureTarget, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
	}
	r.queue.AddAfter(r.key, left)
	return nil
}

func (r *run) failedByIndexes() *batchv1.JobCondition {
	if !r.perIndex() {
		return nil
	}
	lost := r.lost.total()
	if most := r.job.Spec.MaxFailedIndexes; most != nil && lost > int(*most) {
		return r.condition(batchv1.JobFailureTarget, batchv1.JobReasonMaxFailedIndexesExceeded,
			"Job has exceeded the specified maximal number of failed indexes")
	}
	if lost > 0 && lost+r.done.total() >= int(*r.job.Spec.Completions) {
		return r.condition(batchv1.JobFailureTarget, batchv1.JobReasonFailedIndexes, "Job has failed indexes")
	}
	return nil
}

// succeededByPolicy looks for the first rule of successPolicy that is met: enough of its indexes
// (all of them, if it gives no number), or of any if it names none, have succeeded.
func (r *run) succeededByPolicy() *batchv1.JobCondition {
	if !r.indexed() || r.job.Spec.SuccessPolicy == nil || len(r.done) == 0 {
		return nil
	}
	for i, rule := range r.job.Spec.SuccessPolicy.Rules {
		have, need := r.done.total(), -1
		if rule.SucceededIndexes != nil {
			named := parseIndexes(*rule.SucceededIndexes, int(*r.job.Spec.Completions))
			if len(named) == 0 {
				continue
			}
			have, need = r.done.common(named), named.total()
		}
		if rule.SucceededCount != nil {
			need = int(*rule.SucceededCount)
		}
		if need >= 0 && have >= need {
			return r.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, fmt.Sprintf("Matched rules at index %d", i))
		}
	}
	return nil
}

// noteSuspension keeps the condition Suspended, which does not appear before the first suspension.
// A Job's deadline counts from when it was last resumed.
func (r *run) noteSuspension() {
	status := &r.job.Status
	if r.suspended() {
		if r.set(batchv1.JobSuspended, corev1.ConditionTrue, "JobSuspended", "Job suspended") {
			status.StartTime = nil
			r.events.Event(r.job, corev1.EventTypeNormal, "Suspended", "Job suspended")
		}
		return
	}
	if r.set(batchv1.JobSuspended, corev1.ConditionFalse, "JobResumed", "Job resumed") {
		status.StartTime = &metav1.Time{Time: r.now}
		r.events.Event(r.job, corev1.EventTypeNormal, "Resumed", "Job resumed")
	}
}

// condition is a true condition as of now.
func (r *run) condition(t batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	now := metav1.NewTime(r.now)
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastProbeTime: now, LastTransitionTime: now,
	}
}

// set adds or changes a condition, and reports whether it had to. One that is not there yet is not
// added as false.
func (r *run) set(t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string) bool {
	c := r.condition(t, reason, message)
	c.Status = status
	had := find(r.job.Status.Conditions, t)
	switch {
	case had == nil && status == corev1.ConditionFalse:
		return false
	case had == nil:
		r.job.Status.Conditions = append(r.job.Status.Conditions, *c)
		return true
	case had.Status == status && had.Reason == reason && had.Message == message:
		return false
	}
	*had = *c
	return true
}

func find(conditions []batchv1.JobCondition, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}
