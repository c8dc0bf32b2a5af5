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
	return &OnDemand{
		name: "statefulset", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Apps().V1().StatefulSets().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core, apps := in.Core().V1(), in.Apps().V1()
			c := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(),
				apps.ControllerRevisions(), set.Kube)
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// NewReplication returns the controller that makes the pods of ReplicationControllers.
func NewReplication(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "replication", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().ReplicationControllers().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c := replication.NewReplicationManager(ctx, core.Pods(), core.ReplicationControllers(), set.Kube, replication.BurstReplicas)
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// NewCronJob returns the controller that makes Jobs at the times that CronJobs say. Time zones are
// those that the program finds, or has linked (time/tzdata).
func NewCronJob(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "cronjob", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Batch().V1().CronJobs().Informer(),
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			batch := in.Batch().V1()
			c, err := cronjob.NewControllerV2(ctx, batch.Jobs(), batch.CronJobs(), set.Kube)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}
