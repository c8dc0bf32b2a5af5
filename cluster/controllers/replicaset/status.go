package replicaset

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	upstream "k8s.io/kubernetes/pkg/controller"
)

// statusOf is the status of rs with these pods, after scaling it ended with scaleErr.
func statusOf(rs *appsv1.ReplicaSet, active, terminating []*corev1.Pod, scaleErr error, now time.Time) appsv1.ReplicaSetStatus {
	leaving := int32(len(terminating))
	status := appsv1.ReplicaSetStatus{
		Replicas:            int32(len(active)),
		TerminatingReplicas: &leaving,
		ObservedGeneration:  rs.Generation,
		Conditions:          conditionsOf(rs, len(active), scaleErr, now),
	}
	template := labels.SelectorFromValidatedSet(rs.Spec.Template.Labels)
	for _, pod := range active {
		if template.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
		if podutil.IsPodReady(pod) {
			status.ReadyReplicas++
			if podutil.IsPodAvailable(pod, rs.Spec.MinReadySeconds, metav1.NewTime(now)) {
				status.AvailableReplicas++
			}
		}
	}
	return status
}

// conditionsOf adds ReplicaFailure with the first failure's message, and takes it away once scaling
// goes well again.
func conditionsOf(rs *appsv1.ReplicaSet, active int, scaleErr error, now time.Time) []appsv1.ReplicaSetCondition {
	isFailure := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	conditions := rs.Status.Conditions
	failing := slices.ContainsFunc(conditions, isFailure)
	switch {
	case scaleErr != nil && !failing:
		reason := upstream.FailedCreatePodReason
		if active > int(*rs.Spec.Replicas) {
			reason = upstream.FailedDeletePodReason
		}
		return append(slices.Clone(conditions), appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			Reason: reason, Message: scaleErr.Error(), LastTransitionTime: metav1.NewTime(now),
		})
	case scaleErr == nil && failing:
		return slices.DeleteFunc(slices.Clone(conditions), isFailure)
	}
	return conditions
}

// writeStatus writes status unless rs has it already.
func (c *controller) writeStatus(ctx context.Context, key string, rs *appsv1.ReplicaSet, status appsv1.ReplicaSetStatus) error {
	if apiequality.Semantic.DeepEqual(rs.Status, status) {
		return nil
	}
	rs = rs.DeepCopy()
	rs.Status = status
	written, err := c.kube.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, rs, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	c.writes.Wrote(key, c.setCache, written.ResourceVersion)
	c.pace.wrote(key, rs, time.Now())
	return nil
}
