package upstream

//lint:file-ignore SA1019 the old API is what is mirrored

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/controller/endpointslicemirroring"

	"github.com/coracle-project/coracle/cluster/client"
)

// mirroredPerSubset is upstream's default
// (k8s.io/kubernetes/pkg/controller/endpointslicemirroring/config/v1alpha1).
const mirroredPerSubset = 1000

// NewMirroring returns the controller that makes EndpointSlices of the Endpoints that someone else
// than the endpoints controller writes, for Services without a selector. Proxies and DNS know
// slices only.
func NewMirroring(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "endpointslicemirroring", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().Endpoints().Informer(), needs: mirrored,
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			core := in.Core().V1()
			c := endpointslicemirroring.NewController(ctx, core.Endpoints(), in.Discovery().V1().EndpointSlices(), core.Services(),
				mirroredPerSubset, set.Kube, 0)
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// mirrored says whether an object is Endpoints that may have to be mirrored. Those of the endpoints
// controller never are, as their Services have a selector.
func mirrored(object any) bool {
	e, ok := object.(*corev1.Endpoints)
	return ok && e.Labels[discoveryv1.LabelSkipMirror] != "true" && e.Labels["endpoints.kubernetes.io/managed-by"] == ""
}
