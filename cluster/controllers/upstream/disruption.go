package upstream

import (
	"context"

	"k8s.io/kubernetes/pkg/controller/disruption"

	"github.com/coracle-project/coracle/cluster/client"
)

// NewDisruption returns the controller that counts in the status of each PodDisruptionBudget how
// many of its pods may be evicted. Without it no eviction of such a pod is ever allowed.
func NewDisruption(set *client.Set, mapper *Mapper) *OnDemand {
	return &OnDemand{
		name: "disruption", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Policy().V1().PodDisruptionBudgets().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			scales, err := mapper.scales(set)
			if err != nil {
				return nil, err
			}
			core, apps := in.Core().V1(), in.Apps().V1()
			c := disruption.NewDisruptionController(ctx, core.Pods(), in.Policy().V1().PodDisruptionBudgets(), core.ReplicationControllers(),
				apps.ReplicaSets(), apps.Deployments(), apps.StatefulSets(), set.Kube, mapper, scales, set.Kube.Discovery())
			return with(c.Run, mapper.keep), nil
		},
	}
}
