package upstream

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controller/volume/ephemeral"

	"github.com/coracle-project/coracle/cluster/client"
)

// NewEphemeral returns the controller that makes the claims of pods' ephemeral volumes. A claim
// goes with its pod.
func NewEphemeral(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "ephemeral", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().Pods().Informer(), needs: hasEphemeralVolume,
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c, err := ephemeral.NewController(ctx, set.Kube, core.Pods(), core.PersistentVolumeClaims())
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

func hasEphemeralVolume(object any) bool {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return false
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}
