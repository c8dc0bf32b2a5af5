package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coracle-project/coracle/cluster/proxy"
)

// endpoint is what is known of an address.
func (a *Asker) endpoint(at netip.AddrPort, used bool, because string) Endpoint {
	e := Endpoint{Address: at, Used: used, Because: because}
	if pod := a.podAt(at.Addr()); pod != nil {
		e.Pod, e.Node = pod.Namespace+"/"+pod.Name, pod.Spec.NodeName
	} else if node := a.nodeAt(at.Addr()); node != "" {
		e.Node = node
	}
	return e
}

// podAt returns the pod that has an address of its own, nil for none.
func (a *Asker) podAt(address netip.Addr) *corev1.Pod {
	all, err := a.Pods.List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, pod := range all {
		if !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
			slices.Contains(addressesOf(pod), address) {
			return pod
		}
	}
	return nil
}

// nodeAt returns the node that has an address, "" for none.
func (a *Asker) nodeAt(address netip.Addr) string {
	if a.Local(address) {
		return a.Node
	}
	all, err := a.Nodes.List(labels.Everything())
	if err != nil {
		return ""
	}
	for _, node := range all {
		for _, has := range node.Status.Addresses {
			if own, err := netip.ParseAddr(has.Address); err == nil && own.Unmap() == address {
				return node.Name
			}
		}
	}
	return ""
}

func addressesOf(pod *corev1.Pod) []netip.Addr {
	var all []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// unused are the endpoints of a Service's port that the connection cannot get, with reasons.
func (a *Asker) unused(r *proxy.Route, to target) ([]Endpoint, error) {
	all, err := a.slicesOf(r.Service.Namespace, r.Service.Name)
	if err != nil {
		return nil, err
	}
	var found []Endpoint
	for _, slice := range all {
		for _, port := range slice.Ports {
			if port.Port == nil || nameOf(port.Name) != r.Port || numberOf(protocolOf(port.Protocol)) != to.protocol {
				continue
			}
			for i := range slice.Endpoints {
				e := &slice.Endpoints[i]
				at, ok := addressOf(e, uint16(*port.Port))
				if !ok || at.Addr().Is6() != to.address.Addr().Is6() || slices.Contains(r.Endpoints, at) {
					continue
				}
				found = append(found, a.endpoint(at, false, a.whyNot(r, e)))
			}
		}
	}
	return found, nil
}

func (a *Asker) slicesOf(namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	all, err := a.Slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service}))
	if err != nil {
		return nil, fmt.Errorf("list endpoints of Service %s/%s: %w", namespace, service, err)
	}
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// whyNot says why an endpoint gets no connections.
func (a *Asker) whyNot(r *proxy.Route, e *discoveryv1.Endpoint) string {
	is := func(condition *bool, missing bool) bool {
		return condition == nil && missing || condition != nil && *condition
	}
	switch {
	case is(e.Conditions.Terminating, false) && is(e.Conditions.Serving, true):
		return "it is terminating, and others are ready"
	case is(e.Conditions.Terminating, false):
		return "it is terminating"
	case !is(e.Conditions.Ready, true):
		return "it is not ready"
	case r.Local && (e.NodeName == nil || *e.NodeName != a.Node):
		return "it is on another node, and the traffic policy is Local"
	case e.Hints != nil:
		return "others are closer (trafficDistribution)"
	}
	return "its address is not one of a pod or node, or there are too many"
}

func addressOf(e *discoveryv1.Endpoint, port uint16) (netip.AddrPort, bool) {
	if len(e.Addresses) == 0 {
		return netip.AddrPort{}, false
	}
	address, err := netip.ParseAddr(e.Addresses[0])
	return netip.AddrPortFrom(address.Unmap(), port), err == nil
}

func nameOf(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

func protocolOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil {
		return corev1.ProtocolTCP
	}
	return *p
}
