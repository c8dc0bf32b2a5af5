package deployment

import (
	"context"
	"fmt"
	"sort"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
	labelsutil "k8s.io/kubernetes/pkg/util/labels"
)

// historyChars is how long the annotation with a ReplicaSet's earlier revisions may grow.
const historyChars = 2000

// reviseNew makes the new ReplicaSet, if there is one, the latest revision: its number is above all
// others', its annotations and minReadySeconds are the Deployment's, and the Deployment says which
// revision it is at. Rolling back to an earlier template comes down to this: its ReplicaSet gets
// the next number, and its annotation remembers the former ones.
func (r *rollout) reviseNew(ctx context.Context) error {
	if r.new == nil {
		return nil
	}
	rs := r.new.DeepCopy()
	changed := util.SetNewReplicaSetAnnotations(ctx, r.d, rs, r.nextRevision(), true, historyChars)
	if changed || rs.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
		rs.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
		updated, err := r.updateSet(ctx, rs)
		if err != nil {
			return err
		}
		r.new = updated
	}
	util.SetDeploymentRevision(r.d, r.new.Annotations[util.RevisionAnnotation])
	if util.HasProgressDeadline(r.d) && util.GetDeploymentCondition(r.d.Status, appsv1.DeploymentProgressing) == nil {
		r.progress(corev1.ConditionTrue, util.FoundNewRSReason, fmt.Sprintf("Found new replica set %q", r.new.Name))
	}
	return nil
}

func (r *rollout) nextRevision() string {
	return strconv.FormatInt(util.MaxRevision(klog.Background(), r.old)+1, 10)
}

// ensureNew creates the ReplicaSet of the Deployment's template unless there is one. Its name is
// made of the template's hash, so that a second attempt meets the first one's result.
func (r *rollout) ensureNew(ctx context.Context) error {
	if r.new != nil {
		return nil
	}
	rs, err := r.newSet(ctx)
	if err != nil {
		return err
	}
	made, err := r.kube.AppsV1().ReplicaSets(r.d.Namespace).Create(ctx, rs, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return r.resolveTaken(ctx, rs.Name, err)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	case err != nil:
		message := fmt.Sprintf("Failed to create new replica set %q: %v", rs.Name, err)
		r.events.Event(r.d, corev1.EventTypeWarning, util.FailedRSCreateReason, message)
		if util.HasProgressDeadline(r.d) {
			r.progress(corev1.ConditionFalse, util.FailedRSCreateReason, message)
			_ = r.write(ctx) // the failed create is the error that matters, and it is tried again
		}
		return err
	}
	r.writes.Wrote(r.key, r.setCache, made.ResourceVersion)
	r.new = made
	if n := *made.Spec.Replicas; n > 0 {
		r.events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", made.Name, n)
	}
	util.SetDeploymentRevision(r.d, made.Annotations[util.RevisionAnnotation])
	if util.HasProgressDeadline(r.d) {
		r.progress(corev1.ConditionTrue, util.NewReplicaSetReason, fmt.Sprintf("Created new replica set %q", made.Name))
	}
	return nil
}

// newSet is the ReplicaSet to be created for the Deployment's template.
func (r *rollout) newSet(ctx context.Context) (*appsv1.ReplicaSet, error) {
	template := r.d.Spec.Template.DeepCopy()
	hash := upstream.ComputeHash(template, r.d.Status.CollisionCount)
	template.Labels = labelsutil.CloneAndAddLabel(template.Labels, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            setName(r.d.Name, hash),
			Namespace:       r.d.Namespace,
			Labels:          template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        new(int32),
			MinReadySeconds: r.d.Spec.MinReadySeconds,
			Selector:        labelsutil.CloneSelectorAndAddLabel(r.d.Spec.Selector, appsv1.DefaultDeploymentUniqueLabelKey, hash),
			Template:        *template,
		},
	}
	replicas, err := util.NewRSNewReplicas(r.d, append(r.all(), rs), rs)
	if err != nil {
		return nil, err
	}
	rs.Spec.Replicas = &replicas
	util.SetNewReplicaSetAnnotations(ctx, r.d, rs, r.nextRevision(), false, historyChars)
	return rs, nil
}

// setName is the name of the ReplicaSet with this hash; an overlong Deployment name is cut.
func setName(deployment, hash string) string {
	most := validation.DNS1123SubdomainMaxLength - len("-") - len(hash)
	return deployment[:min(len(deployment), most)] + "-" + hash
}

// resolveTaken handles that the new ReplicaSet's name is taken: by itself, made by a controller
// that died right after, or by another template whose hash is the same. In that case the
// Deployment counts one more collision, which changes the hash of the next attempt.
func (r *rollout) resolveTaken(ctx context.Context, name string, taken error) error {
	rs, err := r.kube.AppsV1().ReplicaSets(r.d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if metav1.IsControlledBy(rs, r.d) && util.EqualIgnoreHash(&r.d.Spec.Template, &rs.Spec.Template) {
		r.writes.Wrote(r.key, r.setCache, rs.ResourceVersion)
		r.new = rs
		util.SetDeploymentRevision(r.d, r.nextRevision())
		return nil
	}
	count := int32(1)
	if r.d.Status.CollisionCount != nil {
		count += *r.d.Status.CollisionCount
	}
	r.d.Status.CollisionCount = &count
	if err := r.write(ctx); err != nil {
		return err
	}
	return taken
}

// updateSet writes a changed copy of a ReplicaSet.
func (r *rollout) updateSet(ctx context.Context, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	updated, err := r.kube.AppsV1().ReplicaSets(rs.Namespace).Update(ctx, rs, metav1.UpdateOptions{})
	if err == nil {
		r.writes.Wrote(r.key, r.setCache, updated.ResourceVersion)
	}
	return updated, err
}

// resize sets a ReplicaSet's replicas, and with them the annotations that a later proportional
// scaling starts from. It returns the ReplicaSet as it is then, and by how much it grew.
func (r *rollout) resize(ctx context.Context, rs *appsv1.ReplicaSet, replicas int32) (*appsv1.ReplicaSet, int32, error) {
	from := *rs.Spec.Replicas
	if from == replicas {
		return rs, 0, nil
	}
	updated, err := r.annotate(ctx, rs, replicas)
	if err != nil {
		return rs, 0, err
	}
	direction := "up"
	if replicas < from {
		direction = "down"
	}
	r.events.Eventf(r.d, corev1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", direction, rs.Name, from,
		replicas)
	return updated, replicas - from, nil
}

// annotate writes replicas and the annotations with the Deployment's size.
func (r *rollout) annotate(ctx context.Context, rs *appsv1.ReplicaSet, replicas int32) (*appsv1.ReplicaSet, error) {
	rs = rs.DeepCopy()
	rs.Spec.Replicas = &replicas
	util.SetReplicasAnnotations(rs, *r.d.Spec.Replicas, *r.d.Spec.Replicas+util.MaxSurge(*r.d))
	return r.updateSet(ctx, rs)
}

// prune deletes the oldest ReplicaSets beyond the history limit. One that still has pods, or may
// have, is left for later.
func (r *rollout) prune(ctx context.Context) error {
	if !util.HasRevisionHistoryLimit(r.d) {
		return nil
	}
	history := upstream.FilterReplicaSets(r.old, func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp == nil })
	surplus := len(history) - int(*r.d.Spec.RevisionHistoryLimit)
	if surplus <= 0 {
		return nil
	}
	sort.Sort(util.ReplicaSetsByRevision(history))
	for _, rs := range history[:surplus] {
		if rs.Status.Replicas != 0 || *rs.Spec.Replicas != 0 || rs.Generation > rs.Status.ObservedGeneration {
			continue
		}
		err := r.kube.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name,
			metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(rs.UID))}) // a rollback makes the name again
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
		r.writes.Deleted(r.key, r.setCache, rs)
	}
	return nil
}
