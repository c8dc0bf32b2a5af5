package upstream

import (
	"context"

	"k8s.io/kubernetes/pkg/controller/cronjob"
	"k8s.io/kubernetes/pkg/controller/replication"
	"k8s.io/kubernetes/pkg/controller/statefulset"

	"github.com/coracle-project/coracle/cluster/client"
)

// NewStatefulSet returns the controller that makes the pods and the claims of StatefulSets.
func NewStatefulSet(set *client.Set) *OnDemand {
	core, apps := set.Informers.Core().V1(), set.Informers.Apps().V1()
	sets := apps.StatefulSets()
	return &OnDemand{
		name: "statefulset", informers: set.Informers, trigger: sets.Informer(),
		make: func(ctx context.Context) (func(context.Context), error) {
			c := statefulset.NewStatefulSetController(ctx, core.Pods(), sets, core.PersistentVolumeClaims(), apps.ControllerRevisions(), set.Kube)
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// NewReplication returns the controller that makes the pods of ReplicationControllers.
func NewReplication(set *client.Set) *OnDemand {
	core := set.Informers.Core().V1()
	controllers := core.ReplicationControllers()
	return &OnDemand{
		name: "replication", informers: set.Informers, trigger: controllers.Informer(),
		make: func(ctx context.Context) (func(context.Context), error) {
			c := replication.NewReplicationManager(ctx, core.Pods(), controllers, set.Kube, replication.BurstReplicas)
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// NewCronJob returns the controller that makes Jobs at the times that CronJobs say. Time zones are those that the
// program finds, or has linked (time/tzdata).
func NewCronJob(set *client.Set) *OnDemand {
	batch := set.Informers.Batch().V1()
	crons := batch.CronJobs()
	return &OnDemand{
		name: "cronjob", informers: set.Informers, trigger: crons.Informer(),
		make: func(ctx context.Context) (func(context.Context), error) {
			c, err := cronjob.NewControllerV2(ctx, batch.Jobs(), crons, set.Kube)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}
