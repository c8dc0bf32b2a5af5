// Package loadbalancer is what the cluster's own load balancers are made of: pools of addresses,
// the choice of the node that answers for an address, and the speaker, which has this node's kernel
// answer for its share.
//
// A Service of type LoadBalancer without a class gets its addresses from the controller in
// controllers/loadbalancer, which writes them to the Service's status. That is the only record.
// From there the proxy routes connections to the addresses, on every node, and the speaker of one
// node announces each of them (package announce).
package loadbalancer

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/loadbalancer/announce"
)

// SpeakerOptions say which addresses a node announces, and how.
type SpeakerOptions struct {
	// Node is this node's name.
	Node string
	// Pool has the addresses that may be announced.
	Pool Pool
	// Sink is the name of the device that package announce makes.
	Sink string
	// Interface is where addresses are announced; "" is the interface whose network has the
	// address.
	Interface string
	// Log gets what an operator should know; nil is the Set's.
	Log *slog.Logger
}

// Speaker announces the addresses of Services that are this node's to announce.
type Speaker struct {
	*frame.Controller
	announcer *announce.Announcer
}

// key is the only one: all addresses are looked at together.
const key = "addresses"

// NewSpeaker asks for informers and makes no call.
func NewSpeaker(set *client.Set, o SpeakerOptions) *Speaker {
	o.Log = cmp.Or(o.Log, set.Logger())
	core := set.Informers.Core().V1()
	services, nodes := core.Services(), core.Nodes()
	slices := set.Informers.Discovery().V1().EndpointSlices()
	index, nodeLister, sliceLister := services.Informer().GetIndexer(), nodes.Lister(), slices.Lister()
	Index(services.Informer())
	events, stop := set.Recorder("load-balancer", o.Node)
	owners := struct {
		sync.Mutex
		services map[netip.Addr]*corev1.Service
	}{}
	s := &Speaker{announcer: announce.New(o.Sink, o.Interface, o.Log, func(address netip.Addr, link string, err error) {
		owners.Lock()
		service := owners.services[address]
		owners.Unlock()
		switch {
		case service == nil: // it has gone
		case err != nil:
			events.Eventf(service, corev1.EventTypeWarning, "AddressNotAnnounced", "Node %s does not announce %s: %v", o.Node, address, err)
		default:
			events.Eventf(service, corev1.EventTypeNormal, "AddressAnnounced", "Node %s announces %s on %s", o.Node, address, link)
		}
	})}
	s.Controller = frame.New("load-balancer-speaker", 1, o.Log, func(context.Context, string) error {
		mine := map[netip.Addr]*corev1.Service{}
		all := OfType(index, corev1.ServiceTypeLoadBalancer)
		var machines []*corev1.Node
		if len(all) > 0 { // each change of each node leads here
			var err error
			if machines, err = nodeLister.List(labels.Everything()); err != nil {
				return err
			}
		}
		for _, service := range all {
			if !Concerns(service) {
				continue
			}
			candidates := Candidates(service, machines, func() []*discoveryv1.EndpointSlice {
				its, _ := sliceLister.EndpointSlices(service.Namespace).List(
					labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}),
				)
				return its
			})
			for _, address := range Addresses(service) {
				if o.Pool.Contains(address) && mine[address] == nil && Announcer(address, candidates) == o.Node {
					mine[address] = service
				}
			}
		}
		owners.Lock()
		owners.services = mine
		owners.Unlock()
		addresses := make([]netip.Addr, 0, len(mine))
		for address := range mine {
			addresses = append(addresses, address)
		}
		s.announcer.Set(addresses)
		return nil
	})
	s.Watch(services.Informer(), func(obj any) []string {
		if service, ok := obj.(*corev1.Service); ok && service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			return []string{key}
		}
		return nil
	})
	// Heartbeats of nodes are Leases. With one node, nothing else depends on endpoints.
	s.Watch(nodes.Informer(), func(any) []string { return []string{key} })
	s.Watch(slices.Informer(), func(any) []string {
		if len(OfType(index, corev1.ServiceTypeLoadBalancer)) == 0 {
			return nil
		}
		if machines, err := nodeLister.List(labels.Everything()); err == nil && len(machines) < 2 {
			return nil
		}
		return []string{key}
	})
	s.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	return s
}

// Run announces until ctx ends. What is announced stays so, also while the process is restarted.
func (s *Speaker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { s.Controller.Run(ctx) })
	defer running.Wait()
	defer cancel()
	return s.announcer.Run(ctx)
}

// Addresses are those that a Service's status has.
func Addresses(service *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(ingress.IP); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// byType is the name of the index that [Index] adds.
const byType = "load-balancer.type"

// Index lets Services be found by their type, if that is LoadBalancer or NodePort: there may be
// many others.
func Index(services cache.SharedIndexInformer) {
	if _, ok := services.GetIndexer().GetIndexers()[byType]; ok {
		return
	}
	err := services.AddIndexers(cache.Indexers{byType: func(obj any) ([]string, error) {
		service, ok := obj.(*corev1.Service)
		if !ok || service.Spec.Type != corev1.ServiceTypeLoadBalancer && service.Spec.Type != corev1.ServiceTypeNodePort {
			return nil, nil
		}
		return []string{string(service.Spec.Type)}, nil
	}})
	if err != nil { // an informer that was stopped: a mistake in wiring
		panic(err)
	}
}

// OfType returns the Services of a type that [Index] knows.
func OfType(services cache.Indexer, kind corev1.ServiceType) []*corev1.Service {
	objects, _ := services.ByIndex(byType, string(kind)) // it fails only without the index
	all := make([]*corev1.Service, 0, len(objects))
	for _, obj := range objects {
		all = append(all, obj.(*corev1.Service))
	}
	return all
}
