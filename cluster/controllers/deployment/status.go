package deployment

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// progress sets the condition Progressing.
func (r *rollout) progress(status corev1.ConditionStatus, reason, message string) {
	util.SetDeploymentCondition(&r.d.Status, *util.NewDeploymentCondition(appsv1.DeploymentProgressing, status, reason, message))
}

// notePause marks in Progressing that the Deployment was paused or resumed: the progress deadline
// counts from the latter. One that was missed already stays missed.
func (r *rollout) notePause() {
	if !util.HasProgressDeadline(r.d) {
		return
	}
	reason := ""
	if cond := util.GetDeploymentCondition(r.d.Status, appsv1.DeploymentProgressing); cond != nil {
		reason = cond.Reason
	}
	switch {
	case reason == util.TimedOutReason:
	case r.d.Spec.Paused && reason != util.PausedDeployReason:
		r.progress(corev1.ConditionUnknown, util.PausedDeployReason, "Deployment is paused")
	case !r.d.Spec.Paused && reason == util.PausedDeployReason:
		r.progress(corev1.ConditionUnknown, util.ResumedDeployReason, "Deployment is resumed")
	}
}

// counted is the status as the ReplicaSets' statuses add up to.
func (r *rollout) counted() appsv1.DeploymentStatus {
	all := r.all()
	available := util.GetAvailableReplicaCountForReplicaSets(all)
	status := appsv1.DeploymentStatus{
		ObservedGeneration:  r.d.Generation,
		Replicas:            util.GetActualReplicaCountForReplicaSets(all),
		UpdatedReplicas:     util.GetActualReplicaCountForReplicaSets([]*appsv1.ReplicaSet{r.new}),
		ReadyReplicas:       util.GetReadyReplicaCountForReplicaSets(all),
		AvailableReplicas:   available,
		UnavailableReplicas: max(util.GetReplicaCountForReplicaSets(all)-available, 0),
		TerminatingReplicas: util.GetTerminatingReplicaCountForReplicaSets(all),
		CollisionCount:      r.d.Status.CollisionCount,
		Conditions:          slices.Clone(r.d.Status.Conditions),
	}
	cond := util.NewDeploymentCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue,
		util.MinimumReplicasAvailable, "Deployment has minimum availability.")
	if available < *r.d.Spec.Replicas-util.MaxUnavailable(*r.d) {
		cond = util.NewDeploymentCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse,
			util.MinimumReplicasUnavailable, "Deployment does not have minimum availability.")
	}
	util.SetDeploymentCondition(&status, *cond)
	return status
}

// writeStatus writes the counts, and leaves how the rollout progresses as it is.
func (r *rollout) writeStatus(ctx context.Context) error {
	r.d.Status = r.counted()
	return r.write(ctx)
}

// writeRolloutStatus writes the counts and how the rollout progresses. If nothing changed it sees
// to it that a rollout that makes no progress is looked at again at its deadline.
func (r *rollout) writeRolloutStatus(ctx context.Context) error {
	status := r.counted()
	r.judge(ctx, &status)
	if failure := r.replicaFailure(); failure != nil {
		util.SetDeploymentCondition(&status, *failure)
	} else {
		util.RemoveDeploymentCondition(&status, appsv1.DeploymentReplicaFailure)
	}
	r.d.Status = status
	if !r.changed() {
		r.wakeAtDeadline()
		return nil
	}
	return r.write(ctx)
}

// judge sets Progressing in status by comparing it with the status the Deployment had.
func (r *rollout) judge(ctx context.Context, status *appsv1.DeploymentStatus) {
	if !util.HasProgressDeadline(r.d) {
		util.RemoveDeploymentCondition(status, appsv1.DeploymentProgressing)
		return
	}
	had := util.GetDeploymentCondition(r.d.Status, appsv1.DeploymentProgressing)
	subject := fmt.Sprintf("Deployment %q", r.d.Name)
	if r.new != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.new.Name)
	}
	done := subject + " has successfully progressed."
	if status.Replicas == status.UpdatedReplicas && had != nil && had.Reason == util.NewRSAvailableReason && had.Message == done {
		return // the latest rollout is over; pods that come and go later are none of its business
	}
	// The deadline counts from the condition's last update, so each bit of progress renews it,
	// though status and reason stay; the time of transition must stay with them. That a rollout is
	// done is renewed as well where it was said of another ReplicaSet: one that is rolled back to
	// may be complete before anything of its progress was seen.
	renew := func(reason, message string) {
		cond := util.NewDeploymentCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reason, message)
		if had != nil && had.Status == corev1.ConditionTrue {
			cond.LastTransitionTime = had.LastTransitionTime
		}
		util.RemoveDeploymentCondition(status, appsv1.DeploymentProgressing)
		util.SetDeploymentCondition(status, *cond)
	}
	switch {
	case util.DeploymentComplete(r.d, status):
		renew(util.NewRSAvailableReason, done)
	case util.DeploymentProgressing(r.d, status):
		renew(util.ReplicaSetUpdatedReason, subject+" is progressing.")
	case util.DeploymentTimedOut(ctx, r.d, status):
		util.SetDeploymentCondition(status, *util.NewDeploymentCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse,
			util.TimedOutReason, subject+" has timed out progressing."))
	}
}

// replicaFailure is the failure that a ReplicaSet reports; the new one's goes first.
func (r *rollout) replicaFailure() *appsv1.DeploymentCondition {
	for _, rs := range append([]*appsv1.ReplicaSet{r.new}, r.old...) {
		if rs == nil {
			continue
		}
		for _, cond := range rs.Status.Conditions {
			if cond.Type == appsv1.ReplicaSetReplicaFailure {
				failure := util.ReplicaSetToDeploymentCondition(cond)
				return &failure
			}
		}
	}
	return nil
}

// wakeAtDeadline has the Deployment synced when its progress deadline passes: no event tells that
// nothing happens. A second is added since a condition's time has no fractions.
func (r *rollout) wakeAtDeadline() {
	cond := util.GetDeploymentCondition(r.d.Status, appsv1.DeploymentProgressing)
	if !util.HasProgressDeadline(r.d) || cond == nil || cond.Reason == util.TimedOutReason ||
		util.DeploymentComplete(r.d, &r.d.Status) {
		return
	}
	deadline := cond.LastUpdateTime.Add(time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second)
	if cond.Reason == util.NewRSAvailableReason && time.Now().After(deadline) {
		return // counts from a rollout that went well: it cannot be missed any more
	}
	r.queue.AddAfter(r.key, max(time.Until(deadline), 0)+time.Second)
}

// changed reports whether the Deployment must be written.
func (r *rollout) changed() bool {
	return !apiequality.Semantic.DeepEqual(r.was.Status, r.d.Status) ||
		!apiequality.Semantic.DeepEqual(r.was.Annotations, r.d.Annotations)
}

// write writes status and annotations, if they changed. The status subresource of a Deployment
// takes its annotations along, which is how the revision gets there.
func (r *rollout) write(ctx context.Context) error {
	if !r.changed() {
		return nil
	}
	written, err := r.kube.AppsV1().Deployments(r.d.Namespace).UpdateStatus(ctx, r.d, metav1.UpdateOptions{})
	if err == nil {
		r.writes.Wrote(r.key, r.cache, written.ResourceVersion)
	}
	return err
}
