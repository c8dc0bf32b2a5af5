package proxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/proxy/apis"

	"github.com/coracle-project/coracle/cluster/proxy/rules"
)

// Objects with these labels are for other proxies, or for none.
func foreign(labels map[string]string) bool {
	for _, label := range []string{apis.LabelServiceProxyName, corev1.IsHeadlessService} {
		if _, exists := labels[label]; exists {
			return true
		}
	}
	return false
}

// object is what an informer says was deleted, which may have been missed.
func object[T any](obj any) (T, bool) {
	if gone, missed := obj.(cache.DeletedFinalStateUnknown); missed {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// taken returns the parts of a Service that count. Its externalIPs may be any address, and do not
// count without Config.ExternalIPs. Upstream would also end the UDP flows to them. A load
// balancer's address that was given for some ports does not count while the Service has others:
// they may be the node's own, or another Service's.
func (p *Proxy) taken(s *corev1.Service) *corev1.Service {
	if s == nil {
		return nil
	}
	external := !p.ExternalIPs && len(s.Spec.ExternalIPs) > 0
	uncovered := func(i corev1.LoadBalancerIngress) bool { return !covers(i.Ports, s.Spec.Ports) }
	balancer := slices.ContainsFunc(s.Status.LoadBalancer.Ingress, uncovered)
	if !external && !balancer {
		return s
	}
	without := *s
	if external {
		without.Spec.ExternalIPs = nil
	}
	if balancer {
		without.Status.LoadBalancer.Ingress = slices.DeleteFunc(slices.Clone(s.Status.LoadBalancer.Ingress), uncovered)
	}
	return &without
}

// covers says whether a Service's ports are all among those that were given; none given means all.
func covers(given []corev1.PortStatus, ports []corev1.ServicePort) bool {
	return len(given) == 0 || !slices.ContainsFunc(ports, func(port corev1.ServicePort) bool {
		return !slices.ContainsFunc(given, func(g corev1.PortStatus) bool {
			return g.Port == port.Port && g.Protocol == port.Protocol && g.Error == nil
		})
	})
}

func (p *Proxy) services() cache.ResourceEventHandler {
	tell := func(before, now *corev1.Service) {
		if before != nil && foreign(before.Labels) {
			before = nil
		}
		if now != nil && foreign(now.Labels) {
			now = nil
		}
		if before == nil && now == nil {
			return
		}
		before, now = p.taken(before), p.taken(now)
		for _, f := range p.families {
			f.serviceChanged(before, now)
		}
		p.signal()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(nil, obj.(*corev1.Service)) },
		UpdateFunc: func(before, now any) { tell(before.(*corev1.Service), now.(*corev1.Service)) },
		DeleteFunc: func(obj any) {
			if s, ok := object[*corev1.Service](obj); ok {
				tell(s, nil)
			}
		},
	}
}

func (p *Proxy) slices() cache.ResourceEventHandler {
	tell := func(s *discoveryv1.EndpointSlice, gone bool) {
		changed := false
		for _, f := range p.families { // each takes the slices of its family
			changed = f.lists.update(s, gone) || changed
		}
		if changed {
			p.signal()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if s := obj.(*discoveryv1.EndpointSlice); !foreign(s.Labels) {
				tell(s, false)
			}
		},
		UpdateFunc: func(before, now any) {
			b, s := before.(*discoveryv1.EndpointSlice), now.(*discoveryv1.EndpointSlice)
			// A slice that was deleted and made again may be told of as an update.
			moved := b.Labels[discoveryv1.LabelServiceName] != s.Labels[discoveryv1.LabelServiceName] || b.AddressType != s.AddressType
			if !foreign(b.Labels) && (foreign(s.Labels) || moved) {
				tell(b, true)
			}
			if !foreign(s.Labels) {
				tell(s, false)
			}
		},
		DeleteFunc: func(obj any) {
			if s, ok := object[*discoveryv1.EndpointSlice](obj); ok && !foreign(s.Labels) {
				tell(s, true)
			}
		},
	}
}

// nodeState is what is known of this node.
type nodeState struct {
	mu      sync.Mutex
	labels  map[string]string
	changed bool
}

// take returns the node's labels, and whether they changed since the last time.
func (n *nodeState) take() (labels map[string]string, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed, n.changed = n.changed, false
	return n.labels, changed
}

func (n *nodeState) set(labels map[string]string) (changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.labels[corev1.LabelTopologyZone] == labels[corev1.LabelTopologyZone] && n.labels != nil {
		return false // endpoints depend on nothing else
	}
	n.labels, n.changed = maps.Clone(labels), true
	return true
}

func (p *Proxy) nodes() cache.ResourceEventHandler {
	tell := func(obj any) {
		if n := obj.(*corev1.Node); n.Name == p.NodeName && p.node.set(n.Labels) {
			p.signal()
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) }}
}

// podState is what is known of this node's pods.
type podState struct {
	mu        sync.Mutex
	addresses map[types.UID][]netip.Addr
	changed   rules.Pods
}

// take returns what changed since the last time.
func (s *podState) take() rules.Pods {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = rules.Pods{}
	return changed
}

// set notes a pod's addresses; none for one that is gone.
func (s *podState) set(uid types.UID, addresses []netip.Addr) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.addresses[uid]
	if s.addresses == nil {
		s.addresses = map[types.UID][]netip.Addr{}
	}
	if len(addresses) == 0 {
		delete(s.addresses, uid)
	} else {
		s.addresses[uid] = addresses
	}
	for _, a := range before {
		if !slices.Contains(addresses, a) && !s.has(a) {
			s.changed[a], changed = false, true
		}
	}
	for _, a := range addresses {
		if !slices.Contains(before, a) {
			s.changed[a], changed = true, true
		}
	}
	return changed
}

// has reports whether a pod has an address: it may be another one's already.
func (s *podState) has(a netip.Addr) bool {
	for _, all := range s.addresses {
		if slices.Contains(all, a) {
			return true
		}
	}
	return false
}

func (p *Proxy) podHandler() cache.ResourceEventHandler {
	tell := func(pod *corev1.Pod, gone bool) {
		if pod.Spec.NodeName != p.NodeName || pod.Spec.HostNetwork {
			return
		}
		var addresses []netip.Addr
		if !gone && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			for _, ip := range pod.Status.PodIPs {
				if a, err := netip.ParseAddr(ip.IP); err == nil {
					addresses = append(addresses, a.Unmap())
				}
			}
		}
		if p.pods.set(pod.UID, addresses) {
			p.signal()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { tell(obj.(*corev1.Pod), false) },
		UpdateFunc: func(before, now any) {
			// The informer does not tell of an end that it did not see.
			if b, n := before.(*corev1.Pod), now.(*corev1.Pod); b.UID != n.UID || b.Spec.NodeName != n.Spec.NodeName {
				tell(b, true)
			}
			tell(now.(*corev1.Pod), false)
		},
		DeleteFunc: func(obj any) {
			if pod, ok := object[*corev1.Pod](obj); ok {
				tell(pod, true)
			}
		},
	}
}
