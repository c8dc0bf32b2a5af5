package deployment

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// rollbackTo is the revision that the deprecated annotation asks to go back to (0: the one before
// the last), or nil. kubectl's undo does not use it: it writes the earlier template itself.
func rollbackTo(d *appsv1.Deployment) *int64 {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	if err != nil {
		return nil
	}
	return &revision
}

// rollBack gives the Deployment the template and annotations of the revision asked for, if there is
// one, and takes the request away. The rollout itself starts with the sync after.
func (r *rollout) rollBack(ctx context.Context, revision int64) error {
	if err := r.ensureNew(ctx); err != nil {
		return err
	}
	d := r.d.DeepCopy()
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	eventType, reason, message := corev1.EventTypeWarning, util.RollbackRevisionNotFound, "Unable to find the revision to rollback to."
	if revision == 0 {
		if revision = util.LastRevision(klog.Background(), r.all()); revision == 0 {
			message = "Unable to find last revision."
		}
	}
	for _, rs := range r.all() {
		if have, err := util.Revision(rs); err != nil || revision == 0 || have != revision {
			continue
		}
		if util.EqualIgnoreHash(&d.Spec.Template, &rs.Spec.Template) {
			reason = util.RollbackTemplateUnchanged
			message = fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name)
			break
		}
		util.SetFromReplicaSetTemplate(d, *rs.Spec.Template.DeepCopy())
		util.SetDeploymentAnnotationsTo(d, rs)
		delete(d.Annotations, appsv1.DeprecatedRollbackTo)
		eventType, reason = corev1.EventTypeNormal, util.RollbackDone
		message = fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, revision)
		break
	}
	written, err := r.kube.AppsV1().Deployments(d.Namespace).Update(ctx, d, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	r.writes.Wrote(r.key, r.cache, written.ResourceVersion)
	r.events.Event(r.d, eventType, reason, message)
	return nil
}
