package upstream

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/resourceclaim"
	"k8s.io/kubernetes/pkg/features"

	"github.com/coracle-project/coracle/cluster/client"
)

// NewResourceClaims returns the controller that makes the ResourceClaims of pods' templates, and
// takes devices back from pods that have ended, also those that pods have as extended resources.
func NewResourceClaims(set *client.Set) *OnDemand {
	return &OnDemand{
		name: "resource-claim", log: set.Logger(), informers: set.Informers,
		trigger: set.Informers.Core().V1().Pods().Informer(), needs: usesResourceClaim,
		make: func(ctx context.Context, in *gate) (func(context.Context), error) {
			gates := utilfeature.DefaultFeatureGate
			// Groups of pods are not served, so they have no claims.
			f := resourceclaim.Features{
				AdminAccess:     gates.Enabled(features.DRAAdminAccess),
				PrioritizedList: gates.Enabled(features.DRAPrioritizedList),
			}
			api := in.Resource().V1()
			c, err := resourceclaim.NewController(klog.FromContext(ctx), f, set.Kube, in.Core().V1().Pods(), nil, api.ResourceClaims(),
				api.ResourceClaimTemplates())
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) { c.Run(ctx, workers) }, nil
		},
	}
}

// usesResourceClaim says whether a pod names claims, or the scheduler has made one for the extended
// resources that it requests.
func usesResourceClaim(object any) bool {
	pod, ok := object.(*corev1.Pod)
	return ok && (len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil)
}
