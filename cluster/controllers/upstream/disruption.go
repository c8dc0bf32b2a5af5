package upstream

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"k8s.io/kubernetes/pkg/controller/disruption"

	"github.com/coracle-project/coracle/cluster/client"
)

// remapEvery is how often the kinds of the API are looked up again, for budgets about pods of custom
// resources (upstream's value).
const remapEvery = 30 * time.Second

// NewDisruption returns the controller that counts in the status of each PodDisruptionBudget how many of its
// pods may be evicted. Without it no eviction of such a pod is ever allowed.
func NewDisruption(set *client.Set) *OnDemand {
	core, apps := set.Informers.Core().V1(), set.Informers.Apps().V1()
	budgets := set.Informers.Policy().V1().PodDisruptionBudgets()
	return &OnDemand{
		name: "disruption", informers: set.Informers, trigger: budgets.Informer(),
		make: func(ctx context.Context) (func(context.Context), error) {
			api := set.Kube.Discovery()
			mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(api))
			scales, err := scale.NewForConfig(set.Config, mapper, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(api))
			if err != nil {
				return nil, err
			}
			c := disruption.NewDisruptionController(ctx, core.Pods(), budgets, core.ReplicationControllers(), apps.ReplicaSets(),
				apps.Deployments(), apps.StatefulSets(), set.Kube, mapper, scales, api)
			return func(ctx context.Context) {
				var remapping wait.Group
				remapping.StartWithContext(ctx, func(ctx context.Context) {
					wait.UntilWithContext(ctx, func(context.Context) { mapper.Reset() }, remapEvery)
				})
				defer remapping.Wait()
				c.Run(ctx)
			}, nil
		},
	}
}
