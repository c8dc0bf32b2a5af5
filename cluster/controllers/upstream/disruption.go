package upstream

import (
	"context"

	"k8s.io/kubernetes/pkg/controller/disruption"

	"github.com/coracle-project/coracle/cluster/client"
)

// NewDisruption returns the controller that counts in the status of each PodDisruptionBudget how many of its
// pods may be evicted. Without it no eviction of such a pod is ever allowed.
func NewDisruption(set *client.Set, mapper *Mapper) *OnDemand {
	core, apps := set.Informers.Core().V1(), set.Informers.Apps().V1()
	budgets := set.Informers.Policy().V1().PodDisruptionBudgets()
	return &OnDemand{
		name: "disruption", informers: set.Informers, trigger: budgets.Informer(),
		make: func(ctx context.Context) (func(context.Context), error) {
			scales, err := mapper.scales(set)
			if err != nil {
				return nil, err
			}
			c := disruption.NewDisruptionController(ctx, core.Pods(), budgets, core.ReplicationControllers(), apps.ReplicaSets(),
				apps.Deployments(), apps.StatefulSets(), set.Kube, mapper, scales, set.Kube.Discovery())
			return with(c.Run, mapper.keep), nil
		},
	}
}
