package loadbalancer

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodeutil "k8s.io/kubernetes/pkg/util/node"
)

// Concerns says whether this cluster gives a Service its addresses: it is a load balancer without a
// class, and no other controller cleans up after it.
func Concerns(service *corev1.Service) bool {
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && service.Spec.LoadBalancerClass == nil &&
		!slices.Contains(service.Finalizers, cleanup)
}

// cleanup is the finalizer of upstream's controller for load balancers of clouds. Ours needs none:
// what a Service has is free as soon as the Service is gone.
const cleanup = "service.kubernetes.io/load-balancer-cleanup"

// NodeAddresses returns the addresses by which others reach a node: its external ones, or else its
// internal ones.
func NodeAddresses(n *corev1.Node) []netip.Addr {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		var all []netip.Addr
		for _, each := range n.Status.Addresses {
			a, err := netip.ParseAddr(each.Address)
			if each.Type == kind && err == nil && a.IsGlobalUnicast() && !slices.Contains(all, a.Unmap()) {
				all = append(all, a.Unmap())
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// Candidates returns the nodes that can take a Service's connections from outside, by name: those
// that are ready and not excluded from load balancers. With externalTrafficPolicy Local they have a
// ready endpoint, too. A condition that no node meets counts for none: an address that nothing
// answers for helps no one.
func Candidates(service *corev1.Service, nodes []*corev1.Node, endpoints func() []*discoveryv1.EndpointSlice) []*corev1.Node {
	all := slices.DeleteFunc(slices.Clone(nodes), LeftOut)
	slices.SortFunc(all, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	narrow := func(meets func(*corev1.Node) bool) {
		if some := slices.DeleteFunc(slices.Clone(all), func(n *corev1.Node) bool { return !meets(n) }); len(some) > 0 {
			all = some
		}
	}
	narrow(nodeutil.IsNodeReady)
	if len(all) > 1 && service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		local := NodesOf(endpoints())
		narrow(func(n *corev1.Node) bool { return local[n.Name] })
	}
	return all
}

// NodesOf returns the names of the nodes that have a ready endpoint.
func NodesOf(all []*discoveryv1.EndpointSlice) map[string]bool {
	names := map[string]bool{}
	for _, slice := range all {
		for _, e := range slice.Endpoints {
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				names[*e.NodeName] = true
			}
		}
	}
	return names
}

// SameCandidate says whether Candidates treats two states of a node alike.
func SameCandidate(a, b *corev1.Node) bool {
	return LeftOut(a) == LeftOut(b) && nodeutil.IsNodeReady(a) == nodeutil.IsNodeReady(b)
}

// LeftOut says whether a node's label keeps load balancers from it.
func LeftOut(n *corev1.Node) bool {
	_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
	return excluded
}

// Announcer returns the name of the one candidate that answers for an address, "" if there is none.
// Every node comes to the same result, and a node that comes or goes moves only addresses of its
// own (rendezvous hashing).
func Announcer(address netip.Addr, candidates []*corev1.Node) string {
	var name string
	var highest [sha256.Size]byte
	for _, n := range candidates {
		if sum := sha256.Sum256([]byte(address.String() + " " + n.Name)); name == "" || bytes.Compare(sum[:], highest[:]) > 0 {
			name, highest = n.Name, sum
		}
	}
	return name
}
