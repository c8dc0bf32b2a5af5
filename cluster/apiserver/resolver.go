package apiserver

import (
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// serviceResolver finds where the Service of a webhook can be reached: at one of its ready
// endpoints, since no cluster address needs to be routed for that.
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
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
