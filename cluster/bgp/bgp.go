// Package bgp decides which routes this node announces to BGP routers, and writes them to a file
// for coracle-bgp (package routes), which speaks BGP in a process of its own
// (docs/decisions/bgp.md).
//
// A node announces the networks of its pods, and addresses of the cluster's pool that Services of
// type LoadBalancer have: with externalTrafficPolicy Local if the node has a ready endpoint, with
// Cluster always. A node that is excluded from load balancers announces only its pods.
package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"github.com/coracle-project/coracle/cluster/bgp/routes"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
	"github.com/coracle-project/coracle/cluster/pki"
)

// Options say what a node announces, and where it says so.
type Options struct {
	NodeName string
	// Pool has the addresses of Services that may be announced. Others may be in the status of a
	// Service, too: those of the nodes, or what another controller wrote.
	Pool loadbalancer.Pool
	// Dir is the directory of the file.
	Dir string
	// Health is told whether the file says what holds; nil for no one.
	Health *health.Part
}

// Routes keeps the file.
type Routes struct {
	Options
	*frame.Controller
	nodes     corelisters.NodeLister
	services  cache.Indexer
	endpoints discoverylisters.EndpointSliceLister
}

const key = "routes" // the only one: all routes are in one file

// New asks for informers and makes no call.
func New(set *client.Set, o Options) *Routes {
	core := set.Informers.Core().V1()
	nodes, services, endpoints := core.Nodes(), core.Services(), set.Informers.Discovery().V1().EndpointSlices()
	r := &Routes{Options: o, nodes: nodes.Lister(), services: services.Informer().GetIndexer(), endpoints: endpoints.Lister()}
	r.Controller = frame.New("bgp-routes", 1, set.Logger(), func(context.Context, string) error { return r.sync() })
	r.Watch(nodes.Informer(), func(obj any) []string { return keyIf(isNode(obj, o.NodeName)) })
	if o.Pool.Empty() {
		return r
	}
	loadbalancer.Index(services.Informer())
	r.Watch(services.Informer(), func(obj any) []string {
		service, ok := obj.(*corev1.Service)
		return keyIf(ok && service.Spec.Type == corev1.ServiceTypeLoadBalancer)
	})
	r.Watch(endpoints.Informer(), func(obj any) []string { return keyIf(r.decides(obj)) })
	return r
}

func keyIf(concerned bool) []string {
	if concerned {
		return []string{key}
	}
	return nil
}

func isNode(obj any, name string) bool {
	node, ok := obj.(*corev1.Node)
	return ok && node.Name == name
}

// decides says whether the endpoints in obj decide about an address.
func (r *Routes) decides(obj any) bool {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return false
	}
	found, exists, err := r.services.GetByKey(slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName])
	service, ok := found.(*corev1.Service)
	return err == nil && exists && ok && local(service)
}

func local(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// Run keeps the file until ctx ends. It stays, so that a restart withdraws nothing.
func (r *Routes) Run(ctx context.Context) error {
	r.Controller.Run(ctx)
	return nil
}

func (r *Routes) sync() error {
	now, err := r.routes()
	if err != nil {
		return r.fails(err)
	}
	data, err := now.Encode()
	if err != nil {
		return r.fails(err)
	}
	// The process that reads it is not root's.
	if err := pki.Replace(filepath.Join(r.Dir, routes.File), data, 0o644); err != nil {
		return r.fails(err)
	}
	var warnings []string
	if now.LeftOut > 0 {
		warnings = append(warnings, fmt.Sprintf("%d addresses of Services are not announced: a node announces %d routes at most",
			now.LeftOut, len(now.Prefixes)))
	}
	r.Health.Works(health.Count(len(now.Prefixes), "route")+" of this node", warnings...)
	return nil
}

func (r *Routes) fails(err error) error {
	r.Health.Fails(err)
	return err
}

// routes are what this node announces. A Node that does not exist announces nothing.
func (r *Routes) routes() (routes.Routes, error) {
	node, err := r.nodes.Get(r.NodeName)
	if apierrors.IsNotFound(err) {
		return routes.New(nil, nil, nil), nil
	}
	if err != nil {
		return routes.Routes{}, err
	}
	if loadbalancer.LeftOut(node) || r.Pool.Empty() {
		return routes.New(addresses(node), podNetworks(node), nil), nil
	}
	var services []netip.Prefix
	for _, service := range loadbalancer.OfType(r.services, corev1.ServiceTypeLoadBalancer) {
		if !loadbalancer.Concerns(service) {
			continue
		}
		if local(service) {
			here, err := r.endpointHere(service)
			if err != nil {
				return routes.Routes{}, err
			}
			if !here {
				continue
			}
		}
		services = append(services, r.of(service)...)
	}
	return routes.New(addresses(node), podNetworks(node), services), nil
}

// of returns what of a Service is announced: one address of each family, as the cluster gives it.
// Users who may write its status could have many.
func (r *Routes) of(service *corev1.Service) (all []netip.Prefix) {
	families := map[bool]bool{}
	for _, address := range loadbalancer.Addresses(service) {
		if address = address.Unmap(); r.Pool.Contains(address) && !families[address.Is4()] {
			families[address.Is4()] = true
			all = append(all, netip.PrefixFrom(address, address.BitLen()))
		}
	}
	return all
}

// endpointHere says whether a Service has a ready endpoint on this node.
func (r *Routes) endpointHere(service *corev1.Service) (bool, error) {
	its := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name})
	all, err := r.endpoints.EndpointSlices(service.Namespace).List(its)
	if err != nil {
		return false, err
	}
	return loadbalancer.NodesOf(all)[r.NodeName], nil
}

// podNetworks are the networks that the cluster has given a node for its pods.
func podNetworks(node *corev1.Node) (all []netip.Prefix) {
	for _, text := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 {
			all = append(all, p)
		}
	}
	return all
}

// addresses are those at which a node is reached. Others in its object are no next hops.
func addresses(node *corev1.Node) []netip.Addr {
	all, _ := nodeaddr.InternalIPs(node)
	return all
}
