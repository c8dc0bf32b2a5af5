package deployment

import (
	"context"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	upstream "k8s.io/kubernetes/pkg/controller"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// roll takes one step of a rolling update: grow the new ReplicaSet as far as maxSurge lets it, or
// else shrink old ones as far as maxUnavailable lets them. Each step's effect on the pods brings
// the next sync.
func (r *rollout) roll(ctx context.Context) error {
	if err := r.ensureNew(ctx); err != nil {
		return err
	}
	stepped, err := r.sizeNew(ctx)
	if err != nil {
		return err
	}
	if !stepped {
		if stepped, err = r.shrinkOld(ctx); err != nil {
			return err
		}
	}
	if !stepped && util.DeploymentComplete(r.d, &r.d.Status) {
		if err := r.prune(ctx); err != nil {
			return err
		}
	}
	return r.writeRolloutStatus(ctx)
}

// sizeNew gives the new ReplicaSet the size it may have by now.
func (r *rollout) sizeNew(ctx context.Context) (stepped bool, err error) {
	want := *r.d.Spec.Replicas
	if *r.new.Spec.Replicas < want {
		if want, err = util.NewRSNewReplicas(r.d, r.all(), r.new); err != nil {
			return false, err
		}
	}
	_, grew, err := r.resize(ctx, r.new, want)
	return grew != 0, err
}

// shrinkOld takes pods from the old ReplicaSets, oldest first, in two rounds. The first takes those
// that are not available: losing them costs nothing, and they would hold the rollout up. It may
// take as many as there are pods above the minimum, less those of the new ReplicaSet that still
// have to become available. The second takes available ones, as many as the minimum can spare.
func (r *rollout) shrinkOld(ctx context.Context) (stepped bool, err error) {
	old := upstream.FilterActiveReplicaSets(r.old)
	if len(old) == 0 {
		return false, nil
	}
	sort.Sort(upstream.ReplicaSetsByCreationTimestamp(old))
	atLeast := *r.d.Spec.Replicas - util.MaxUnavailable(*r.d)
	coming := *r.new.Spec.Replicas - r.new.Status.AvailableReplicas
	spare := util.GetReplicaCountForReplicaSets(r.all()) - atLeast - coming
	if spare <= 0 {
		return false, nil
	}

	// The rounds end with the first failed write; what was done before it is kept.
	shrink := func(i int, by int32) error {
		if by <= 0 {
			return nil
		}
		updated, grew, err := r.resize(ctx, old[i], *old[i].Spec.Replicas-by)
		if err == nil {
			old[i] = updated
			stepped = stepped || grew != 0
		}
		return err
	}
	for i, rs := range old {
		broken := min(spare, *rs.Spec.Replicas-rs.Status.AvailableReplicas)
		if err := shrink(i, broken); err != nil {
			return stepped, err
		}
		spare -= max(broken, 0)
	}
	spare = remaining(append(old, r.new)) - atLeast
	for i, rs := range old {
		by := min(spare, *rs.Spec.Replicas)
		if err := shrink(i, by); err != nil {
			return stepped, err
		}
		spare -= max(by, 0)
	}
	return stepped, nil
}

// remaining is how many available pods there are once every ReplicaSet has its size. The status of
// one that was just shrunk may still count pods that are about to go; unavailable ones go first.
func remaining(sets []*appsv1.ReplicaSet) int32 {
	sum := int32(0)
	for _, rs := range sets {
		sum += min(rs.Status.AvailableReplicas, *rs.Spec.Replicas)
	}
	return sum
}
