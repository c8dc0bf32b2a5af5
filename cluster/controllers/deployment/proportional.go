package deployment

import (
	"context"
	"sort"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// replicasChanged reports whether the Deployment's replicas were changed since its ReplicaSets were
// last sized: those with pods carry an annotation with the number they were sized for.
func (r *rollout) replicasChanged() bool {
	for _, rs := range upstream.FilterActiveReplicaSets(r.all()) {
		if sizedFor, ok := util.GetDesiredReplicasAnnotation(klog.Background(), rs); ok && sizedFor != *r.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// rescale brings the ReplicaSets to the Deployment's size without rolling any further.
func (r *rollout) rescale(ctx context.Context) error {
	if err := r.distribute(ctx); err != nil {
		return err
	}
	if r.d.Spec.Paused && rollbackTo(r.d) == nil {
		if err := r.prune(ctx); err != nil {
			return err
		}
	}
	return r.writeStatus(ctx)
}

// distribute spreads the Deployment's replicas over its ReplicaSets. With one that has pods, or
// none, there is nothing to spread. In the middle of a rollout each keeps its share: were the
// change given to the new ReplicaSet alone, scaling would hasten a rollout that may be a bad one.
func (r *rollout) distribute(ctx context.Context) error {
	if only := util.FindActiveOrLatest(r.new, r.old); only != nil {
		_, _, err := r.resize(ctx, only, *r.d.Spec.Replicas)
		return err
	}
	if util.IsSaturated(r.d, r.new) { // old ones with pods were adopted, or left over
		for _, rs := range upstream.FilterActiveReplicaSets(r.old) {
			if _, _, err := r.resize(ctx, rs, 0); err != nil {
				return err
			}
		}
		return nil
	}
	if !util.IsRollingUpdate(r.d) {
		return nil
	}
	active := upstream.FilterActiveReplicaSets(r.all())
	sizes := r.shares(active)
	for i, rs := range active {
		if *rs.Spec.Replicas != sizes[i] {
			if _, _, err := r.resize(ctx, rs, sizes[i]); err != nil {
				return err
			}
			continue
		}
		if util.ReplicasAnnotationsNeedUpdate(rs, *r.d.Spec.Replicas, *r.d.Spec.Replicas+util.MaxSurge(*r.d)) {
			if _, err := r.annotate(ctx, rs, sizes[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// shares orders active by who is served first (larger ones; of the same size, newer ones when
// growing and older ones when shrinking) and returns the size of each. What rounding leaves over
// goes to the first.
func (r *rollout) shares(active []*appsv1.ReplicaSet) []int32 {
	most := int32(0)
	if *r.d.Spec.Replicas > 0 {
		most = *r.d.Spec.Replicas + util.MaxSurge(*r.d)
	}
	change := most - util.GetReplicaCountForReplicaSets(active)
	if change > 0 {
		sort.Sort(upstream.ReplicaSetsBySizeNewer(active))
	} else {
		sort.Sort(upstream.ReplicaSetsBySizeOlder(active))
	}
	sizes := make([]int32, len(active))
	spread := int32(0)
	for i, rs := range active {
		share := util.GetReplicaSetProportion(klog.Background(), rs, *r.d, change, spread)
		sizes[i] = *rs.Spec.Replicas + share
		spread += share
	}
	if len(sizes) > 0 {
		sizes[0] = max(sizes[0]+change-spread, 0)
	}
	return sizes
}
