// Package loadbalancer gives Services of type LoadBalancer their addresses: each one of its own
// from a pool, or, without a pool, the addresses of nodes, which all of them share by their ports.
// The status says which ports a Service was given there: the proxy routes an address only while
// these cover the ports of the spec, which users change at any time.
//
// A Service's status is the only record of what it has. Each sync looks at all Services, so that it
// can say who has an address, and writes what differs (plan.go, nodeplan.go). An address is free as
// soon as no Service has it; a Service that waits for one then gets it. What a Service does not get
// is told by Events on it.
//
// Services with a class, and those that another controller has put the finalizer for load balancers
// on, are left alone.
package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
	"github.com/coracle-project/coracle/cluster/loadbalancer"
	"github.com/coracle-project/coracle/cluster/loadbalancer/freeports"
)

// Options say where addresses come from.
type Options struct {
	// Pool has the addresses; without any, Services get those of nodes.
	Pool loadbalancer.Pool
	// Reserved are TCP ports of nodes that no Service may have at a node's address, and what has
	// them.
	Reserved map[int32]string
	// Busy says whether something on this machine uses a port of an address, and whether the address
	// is this machine's; nil for never. Of other addresses, their nodes say so (package freeports).
	Busy func(netip.AddrPort, corev1.Protocol) (busy, local bool)
}

// key is the only one: Services share what there is.
const key = "addresses"

// again is when a port is looked at once more that is not a Service's: no event tells that it is
// free.
const again = 30 * time.Second

type controller struct {
	Options
	set      *client.Set
	services cache.Indexer
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	writes   *freshness.Writes
	events   record.EventRecorder
	later    func(key string, d time.Duration)
	said     map[types.UID]string // the problems that a Service was last told of
	written  map[types.UID]*written
	asked    map[types.UID]time.Time // see machines
}

// written is the status that a Service was last given, and how often someone else has changed it
// since.
type written struct {
	status corev1.LoadBalancerStatus
	undone int
	told   bool // that it is not written any more
}

// mostUndone is how often a status is written again that someone else has changed: two controllers
// that correct each other would never end.
const mostUndone = 3

// New returns the controller.
func New(set *client.Set, o Options) *frame.Controller {
	core := set.Informers.Core().V1()
	services, nodes, slices := core.Services(), core.Nodes(), set.Informers.Discovery().V1().EndpointSlices()
	loadbalancer.Index(services.Informer())
	events, stop := set.Recorder("load-balancer-controller", "")
	c := &controller{
		Options: o, set: set, services: services.Informer().GetIndexer(), nodes: nodes.Lister(), slices: slices.Lister(),
		writes: freshness.New(set.Logger()), events: events, said: map[types.UID]string{}, written: map[types.UID]*written{},
		asked: map[types.UID]time.Time{},
	}
	if c.Busy == nil {
		c.Busy = func(netip.AddrPort, corev1.Protocol) (busy, local bool) { return false, true }
	}
	f := frame.New("load-balancer", 1, set.Logger(), c.writes.Guard(c.sync, func(key string, d time.Duration) { c.later(key, d) }))
	c.later = f.AddAfter
	f.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	f.Watch(services.Informer(), func(obj any) []string {
		service, ok := obj.(*corev1.Service)
		if ok && (service.Spec.Type == corev1.ServiceTypeLoadBalancer || o.Pool.Empty() && service.Spec.Type == corev1.ServiceTypeNodePort) {
			return []string{key}
		}
		return nil
	})
	if o.Pool.Empty() {
		feed.Changes(f, nodes.Informer(), nodeChanged)
		f.Watch(slices.Informer(), c.ofLocal)
	}
	return f
}

// nodeChanged tells changes by which Services get other addresses from heartbeats, by far the most
// of what nodes say.
func nodeChanged(old, obj any) []string {
	before, _ := old.(*corev1.Node)
	node, _ := obj.(*corev1.Node)
	if before != nil && node != nil && loadbalancer.SameCandidate(before, node) &&
		equality.Semantic.DeepEqual(before.Status.Addresses, node.Status.Addresses) &&
		before.Annotations[freeports.Annotation] == node.Annotations[freeports.Annotation] {
		return nil
	}
	return []string{key}
}

// ofLocal returns the key for EndpointSlices that decide which nodes can take a Service's
// connections.
func (c *controller) ofLocal(obj any) []string {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	found, there, err := c.services.GetByKey(slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName])
	if err != nil || !there {
		return nil
	}
	service, ok := found.(*corev1.Service)
	if !ok || service.Spec.Type != corev1.ServiceTypeLoadBalancer ||
		service.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return nil
	}
	return []string{key}
}

func (c *controller) sync(ctx context.Context, _ string) error {
	services := loadbalancer.OfType(c.services, corev1.ServiceTypeLoadBalancer)
	all := requests(services)
	others := slices.DeleteFunc(slices.Clone(services), loadbalancer.Concerns)
	if c.Pool.Empty() {
		if err := c.share(services, all, others); err != nil {
			return err
		}
	} else {
		fromPool(c.Pool, all, others)
	}
	said := map[types.UID]string{}
	var errs []error
	for _, r := range all {
		said[r.UID] = c.tell(r)
		if err := c.write(ctx, r); err != nil {
			errs = append(errs, fmt.Errorf("status of Service %s: %w", r.name(), err))
		}
	}
	c.said = said
	maps.DeleteFunc(c.written, func(uid types.UID, _ *written) bool { _, there := said[uid]; return !there })
	maps.DeleteFunc(c.asked, func(uid types.UID, _ time.Time) bool { _, there := said[uid]; return !there })
	return errors.Join(errs...)
}

// share plans with the addresses of nodes.
func (c *controller) share(services []*corev1.Service, all []*request, others []*corev1.Service) error {
	if len(all) == 0 { // as on most clusters
		return nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	answers := map[netip.Addr]freeports.Answers{}
	for _, n := range nodes {
		its := freeports.Of(n)
		for _, a := range loadbalancer.NodeAddresses(n) {
			if _, claimed := answers[a]; claimed {
				answers[a] = nil // which of them has it is not known
			} else {
				answers[a] = its
			}
		}
	}
	next := fromNodes(machines{
		addresses: func(service *corev1.Service) []netip.Addr {
			return addressesOf(loadbalancer.Candidates(service, nodes, func() []*discoveryv1.EndpointSlice {
				its, _ := c.slices.EndpointSlices(service.Namespace).List(
					labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}),
				)
				return its
			}))
		},
		nodePorts: nodePorts(append(services, loadbalancer.OfType(c.services, corev1.ServiceTypeNodePort)...)), reserved: c.Reserved,
		state: func(p place) portState { return c.stateOf(p, answers[p.address]) }, asked: c.asked,
	}, all, others, time.Now())
	if next > 0 {
		c.later(key, next)
	}
	return nil
}

// stateOf is that of a port of a node's address. The node's answers count for addresses of others.
func (c *controller) stateOf(p place, answers freeports.Answers) portState {
	busy, local := c.Busy(netip.AddrPortFrom(p.address, uint16(p.port)), p.protocol)
	known := local
	if !local {
		busy, known = answers[freeports.Port{Protocol: p.protocol, Number: p.port}]
	}
	switch {
	case !known:
		return portUnknown
	case busy:
		return portUsed
	}
	return portFree
}

// addressesOf returns the addresses by which others reach nodes.
func addressesOf(nodes []*corev1.Node) []netip.Addr {
	var all []netip.Addr
	for _, n := range nodes {
		for _, a := range loadbalancer.NodeAddresses(n) {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// tell records Events about what a Service does not get, each once while it is so.
func (c *controller) tell(r *request) string {
	var texts []string
	for _, p := range r.outcome.problems {
		texts = append(texts, p.reason+" "+p.message)
	}
	said := strings.Join(texts, "\n")
	if c.said[r.UID] != said {
		for _, p := range r.outcome.problems {
			c.events.Event(r.Service, corev1.EventTypeWarning, p.reason, p.message)
		}
	}
	return said
}

// write makes a Service's status what was planned.
func (c *controller) write(ctx context.Context, r *request) error {
	var status corev1.LoadBalancerStatus
	for _, a := range r.outcome.addresses {
		vip := corev1.LoadBalancerIPModeVIP
		status.Ingress = append(status.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &vip, Ports: r.outcome.ports})
	}
	if equality.Semantic.DeepEqual(status, r.Status.LoadBalancer) {
		return nil
	}
	last, undone := c.written[r.UID], 0
	if last != nil && equality.Semantic.DeepEqual(last.status, status) { // it was this already
		if undone = last.undone + 1; undone > mostUndone {
			if !last.told {
				c.events.Event(r.Service, corev1.EventTypeWarning, reasonOther,
					"Another controller changes the addresses of this Service, which are left to it: "+
						"give the Service a class, or start the cluster with --load-balancer-cidr none")
			}
			last.told = true
			return nil
		}
	}
	service := r.DeepCopy()
	service.Status.LoadBalancer = status
	now, err := c.set.Kube.CoreV1().Services(r.Namespace).UpdateStatus(ctx, service, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.written[r.UID] = &written{status: status, undone: undone} // what failed, a conflict say, is no one's doing
	c.writes.Wrote(key, c.services, now.ResourceVersion)
	if len(r.outcome.addresses) > 0 {
		c.events.Eventf(r.Service, corev1.EventTypeNormal, reasonAssigned, "The Service has %v", r.outcome.addresses)
	}
	return nil
}
