package apiserver

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// serviceResolver finds where the Service of a webhook or of another API server can be reached: at
// one of its ready endpoints, since no cluster address needs to be routed for that, or at its
// external name.
type serviceResolver struct {
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

func newServiceResolver(shared informers.SharedInformerFactory) (webhook.ServiceResolver, error) {
	slices, err := proxy.NewEndpointSliceIndexerGetter(shared.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return serviceResolver{shared.Core().V1().Services().Lister(), slices}, nil
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (r serviceResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if s, err := r.services.Services(namespace).Get(name); err == nil && s.Spec.Type == corev1.ServiceTypeExternalName {
		return proxy.ResolveCluster(r.services, namespace, name, port)
	}
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
