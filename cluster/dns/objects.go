package dns

import (
	"fmt"
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// objects finds the API's objects in the informers that the process has anyway. Nothing is copied
// and no name is kept: every lookup is by a key or an index.
type objects struct {
	services, namespaces, addresses, slices cache.SharedIndexInformer
}

const (
	// byService finds EndpointSlices by NAMESPACE/SERVICE.
	byService = "coracle-dns-service"
	// byNamedAddress finds EndpointSlices by the addresses of endpoints that have a name of their
	// own: those of headless Services. Others have no PTR records, and are many.
	byNamedAddress = "coracle-dns-address"
)

func newObjects(shared informers.SharedInformerFactory) (*objects, error) {
	o := &objects{
		services:   shared.Core().V1().Services().Informer(),
		namespaces: shared.Core().V1().Namespaces().Informer(),
		addresses:  shared.Networking().V1().IPAddresses().Informer(),
		slices:     shared.Discovery().V1().EndpointSlices().Informer(),
	}
	err := o.slices.AddIndexers(cache.Indexers{byService: serviceOf, byNamedAddress: namedAddresses})
	if err != nil {
		return nil, fmt.Errorf("index endpoint slices: %w", err)
	}
	return o, nil
}

// synced are functions that report whether all objects are here.
func (o *objects) synced() (all []cache.DoneChecker) {
	for _, i := range []cache.SharedIndexInformer{o.services, o.namespaces, o.addresses, o.slices} {
		all = append(all, i.HasSyncedChecker())
	}
	return all
}

func serviceOf(obj any) ([]string, error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || slice.Labels[discoveryv1.LabelServiceName] == "" {
		return nil, nil
	}
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
}

func namedAddresses(obj any) (addresses []string, _ error) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil, nil
	}
	_, headless := slice.Labels[corev1.IsHeadlessService]
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addresses) > 0 && (headless || hostnameOf(e) != "") {
			addresses = append(addresses, e.Addresses[0])
		}
	}
	return addresses, nil
}

func hostnameOf(e *discoveryv1.Endpoint) string {
	if e.Hostname == nil {
		return ""
	}
	return *e.Hostname
}

func (o *objects) namespaceExists(name string) bool {
	_, ok, err := o.namespaces.GetStore().GetByKey(name)
	return ok && err == nil
}

// service returns a Service, nil for none.
func (o *objects) service(namespace, name string) *corev1.Service {
	obj, ok, err := o.services.GetStore().GetByKey(namespace + "/" + name)
	if !ok || err != nil {
		return nil
	}
	s, _ := obj.(*corev1.Service)
	return s
}

// serviceAt returns the Service that has a cluster address, nil for none. The API server keeps an
// IPAddress object for each.
func (o *objects) serviceAt(addr netip.Addr) *corev1.Service {
	obj, ok, err := o.addresses.GetStore().GetByKey(addr.String())
	if !ok || err != nil {
		return nil
	}
	address, ok := obj.(*networkingv1.IPAddress)
	if !ok || address.Spec.ParentRef == nil || address.Spec.ParentRef.Resource != "services" {
		return nil
	}
	return o.service(address.Spec.ParentRef.Namespace, address.Spec.ParentRef.Name)
}

// endpoint is one endpoint with an address, and what its slice says of all of its endpoints.
type endpoint struct {
	*discoveryv1.Endpoint
	slice *discoveryv1.EndpointSlice
}

func (e endpoint) address() string { return e.Addresses[0] }

// endpoints yields the endpoints of a Service that have names: those that are ready, or all where
// the Service says so.
func (o *objects) endpoints(s *corev1.Service) iter.Seq[endpoint] {
	return func(yield func(endpoint) bool) {
		all, err := o.slices.GetIndexer().ByIndex(byService, s.Namespace+"/"+s.Name)
		if err != nil {
			return
		}
		for _, obj := range all {
			slice, ok := obj.(*discoveryv1.EndpointSlice)
			if !ok || slice.AddressType == discoveryv1.AddressTypeFQDN {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				ready := e.Conditions.Ready == nil || *e.Conditions.Ready || s.Spec.PublishNotReadyAddresses
				if ready && len(e.Addresses) > 0 && !yield(endpoint{e, slice}) {
					return
				}
			}
		}
	}
}

// endpointsAt yields the endpoints at an address that have names, with their headless Services.
func (o *objects) endpointsAt(addr netip.Addr) iter.Seq2[endpoint, *corev1.Service] {
	return func(yield func(endpoint, *corev1.Service) bool) {
		all, err := o.slices.GetIndexer().ByIndex(byNamedAddress, addr.String())
		if err != nil {
			return
		}
		for _, obj := range all {
			slice, ok := obj.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			s := o.service(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
			if s == nil || !headless(s) {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				ready := e.Conditions.Ready == nil || *e.Conditions.Ready || s.Spec.PublishNotReadyAddresses
				if ready && len(e.Addresses) > 0 && e.Addresses[0] == addr.String() && !yield(endpoint{e, slice}, s) {
					return
				}
			}
		}
	}
}

func headless(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP == corev1.ClusterIPNone
}
