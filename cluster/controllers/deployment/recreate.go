package deployment

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/kubernetes/pkg/controller"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"

	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
)

// recreate takes one step of a rollout that never has pods of two revisions: shrink all old
// ReplicaSets to nothing, wait for their last pod to be gone, then make and grow the new one.
func (r *rollout) recreate(ctx context.Context) error {
	stepped := false
	for _, rs := range upstream.FilterActiveReplicaSets(r.old) {
		_, grew, err := r.resize(ctx, rs, 0)
		if err != nil {
			return err
		}
		stepped = stepped || grew != 0
	}
	if stepped || r.oldPodsRun() {
		return r.writeRolloutStatus(ctx)
	}
	if err := r.ensureNew(ctx); err != nil {
		return err
	}
	if _, _, err := r.resize(ctx, r.new, *r.d.Spec.Replicas); err != nil {
		return err
	}
	if util.DeploymentComplete(r.d, &r.d.Status) {
		if err := r.prune(ctx); err != nil {
			return err
		}
	}
	return r.writeRolloutStatus(ctx)
}

// oldPodsRun reports whether any pod of an old ReplicaSet may still run. One that is being deleted
// does until it is gone or has finished.
func (r *rollout) oldPodsRun() bool {
	if util.GetActualReplicaCountForReplicaSets(r.old) > 0 {
		return true
	}
	for _, rs := range r.old {
		for _, pod := range adoption.Owned[*corev1.Pod](r.podCache, replicaSetKind, rs) {
			if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
				return true
			}
		}
	}
	return false
}
