package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

const here = "here"

// world has objects, the State that was told of them, and the rules that came of it.
type world struct {
	t          testing.TB
	state      *State
	rules      *rules.State
	namespaces map[string]map[string]string
	pods       []*corev1.Pod // an address is that of the last pod that has it
	policies   map[string]*networkingv1.NetworkPolicy
	cluster    map[string]*policyv1alpha2.ClusterNetworkPolicy
	classes    [2]map[uint32]*rules.Class
	idents     map[netip.Addr]uint32
	of         map[netip.Addr]rules.Pod
	problems   []Problem
	ruled      map[bool]int // how many connections the last compare saw accepted or denied by ClusterNetworkPolicies
}

func newWorld(t testing.TB, limits Limits) *world {
	return &world{
		t: t, state: New(here, limits), rules: rules.NewState(nil), namespaces: map[string]map[string]string{},
		policies: map[string]*networkingv1.NetworkPolicy{}, cluster: map[string]*policyv1alpha2.ClusterNetworkPolicy{},
		classes: [2]map[uint32]*rules.Class{{}, {}},
		idents:  map[netip.Addr]uint32{}, of: map[netip.Addr]rules.Pod{},
	}
}

func (w *world) namespace(name string, labels map[string]string) {
	w.namespaces[name] = labels
	w.state.SetNamespace(name, labels)
}

func (w *world) removeNamespace(name string) {
	delete(w.namespaces, name)
	w.state.DeleteNamespace(name)
}

func (w *world) pod(p *corev1.Pod) {
	if i := slices.IndexFunc(w.pods, func(other *corev1.Pod) bool { return IDOf(other) == IDOf(p) }); i >= 0 {
		w.pods[i] = p
	} else {
		w.pods = append(w.pods, p)
	}
	w.state.SetPod(IDOf(p), p, Addresses(p), false)
}

func (w *world) removePod(p *corev1.Pod) {
	w.pods = slices.DeleteFunc(w.pods, func(other *corev1.Pod) bool { return IDOf(other) == IDOf(p) })
	w.state.DeletePod(IDOf(p))
}

func (w *world) policy(p *networkingv1.NetworkPolicy) {
	w.policies[p.Namespace+"/"+p.Name] = p
	w.state.SetPolicy(p)
}

func (w *world) removePolicy(p *networkingv1.NetworkPolicy) {
	delete(w.policies, p.Namespace+"/"+p.Name)
	w.state.DeletePolicy(p.Namespace, p.Name)
}

func (w *world) clusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	w.cluster[p.Name] = p
	w.state.SetClusterPolicy(p)
}

func (w *world) removeClusterPolicy(name string) {
	delete(w.cluster, name)
	w.state.DeleteClusterPolicy(name)
}

// take puts in force what changed, and checks that the kernel could hold it.
func (w *world) take() Result {
	w.t.Helper()
	r := w.state.Take()
	w.problems = append(w.problems, r.Problems...)
	if err := w.rules.Apply(r.Change); err != nil {
		w.t.Fatal(err)
	}
	keep(w.idents, r.Change.Idents, func(n uint32) (uint32, bool) { return n, n != 0 })
	keep(w.of, r.Change.Pods, func(p *rules.Pod) (rules.Pod, bool) {
		if p == nil {
			return rules.Pod{}, false
		}
		return *p, true
	})
	for d, classes := range r.Change.Classes {
		keep(w.classes[d], classes, func(c *rules.Class) (*rules.Class, bool) { return c, c != nil })
	}
	w.check()
	return r
}

func keep[K comparable, V, W any](all map[K]W, changes map[K]V, value func(V) (W, bool)) {
	for k, v := range changes {
		if now, exists := value(v); exists {
			all[k] = now
		} else {
			delete(all, k)
		}
	}
}

// check says what is wrong with the rules, whatever the policies say.
func (w *world) check() {
	w.t.Helper()
	shared := false // pods whose address another one has are counted, and have none in the kernel
	for _, at := range w.state.addresses {
		shared = shared || len(at.pods) > 1
	}
	used := [2]map[uint32]bool{{0: true}, {0: true}}
	for a, p := range w.of {
		for d, n := range []uint32{p.Ingress, p.Egress} {
			used[d][n] = true
			if n != 0 && w.classes[d][n] == nil {
				w.t.Errorf("%s has class %d of direction %d, and there is none", a, n, d)
			}
		}
	}
	identities := map[uint32]bool{}
	for _, n := range w.idents {
		identities[n] = true
	}
	kept := extent{}
	for d, classes := range w.classes {
		for n, c := range classes {
			kept = kept.replace(extent{}, extentOf(c))
			if !used[d][n] && !shared {
				w.t.Errorf("class %d of direction %d has no pods", n, d)
			}
			for i, p := range c.Peers {
				if !identities[p.Ident] && !shared {
					w.t.Errorf("class %d has a peer %d, and no pod is that", n, p.Ident)
				}
				if i > 0 && c.Peers[i-1].Ident == p.Ident && overlap(c.Peers[i-1].Ports, p.Ports) {
					w.t.Errorf("class %d has peers that overlap: %v, %v", n, c.Peers[i-1], p)
				}
			}
			for i, b := range c.Blocks {
				for _, other := range c.Blocks[i+1 : min(len(c.Blocks), i+50)] {
					if b.First.BitLen() == other.First.BitLen() && !b.Last.Less(other.First) && !other.Last.Less(b.First) &&
						overlap(b.Ports, other.Ports) {
						w.t.Errorf("class %d has blocks that overlap: %v, %v", n, b, other)
					}
				}
			}
		}
	}
	if kept != w.state.kept {
		w.t.Errorf("%v are counted, there are %v", w.state.kept, kept)
	}
}

func overlap(a, b rules.PortRange) bool {
	return a.Protocol == 0 || b.Protocol == 0 || a.Protocol == b.Protocol && a.First <= b.Last && b.First <= a.Last
}

// owner is the pod that has an address, nil if it is of something else.
func (w *world) owner(a netip.Addr) *corev1.Pod {
	for _, p := range slices.Backward(w.pods) {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !p.Spec.HostNetwork && !ended && slices.Contains(Addresses(p), a) {
			return p
		}
	}
	return nil
}

// allowed says what the API's documentation says of a connection, object by object.
func (w *world) allowed(c rules.Connection) bool {
	source, destination := c.Source.Addr(), c.Destination.Addr()
	if source == destination {
		return true
	}
	from, to := w.owner(source), w.owner(destination)
	return w.side(networkingv1.PolicyTypeEgress, from, to, destination, to, c) &&
		w.side(networkingv1.PolicyTypeIngress, to, from, source, to, c)
}

// side says whether the policies of one end allow a connection with the other one.
func (w *world) side(kind networkingv1.PolicyType, own, peer *corev1.Pod, address netip.Addr, to *corev1.Pod, c rules.Connection) bool {
	if own == nil || own.Spec.NodeName != here {
		return true
	}
	if _, known := w.namespaces[own.Namespace]; !known && len(w.cluster) > 0 {
		return false
	}
	subject := slices.ContainsFunc(slices.Collect(maps.Values(w.cluster)), func(p *policyv1alpha2.ClusterNetworkPolicy) bool {
		return w.isSubject(p, kind, own)
	})
	if subject && peer != nil {
		if _, known := w.namespaces[peer.Namespace]; !known {
			return false
		}
	}
	switch w.clusterAction(policyv1alpha2.AdminTier, kind, own, peer, address, to, c) {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return true
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		return false
	}
	isolated := false
	for _, p := range w.policies {
		kinds := p.Spec.PolicyTypes
		if len(kinds) == 0 {
			kinds = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(p.Spec.Egress) > 0 {
				kinds = append(kinds, networkingv1.PolicyTypeEgress)
			}
		}
		if p.Namespace != own.Namespace || !slices.Contains(kinds, kind) || !selects(w.t, &p.Spec.PodSelector, own.Labels) {
			continue
		}
		isolated = true
		if kind == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				if w.matches(p.Namespace, kind, r.From, r.Ports, peer, address, to, c) {
					return true
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if w.matches(p.Namespace, kind, r.To, r.Ports, peer, address, to, c) {
				return true
			}
		}
	}
	return !isolated && w.clusterAction(policyv1alpha2.BaselineTier, kind, own, peer,
		address, to, c) != policyv1alpha2.ClusterNetworkPolicyRuleActionDeny
}

// isSubject says whether a policy says anything of what a pod sends, or receives.
func (w *world) isSubject(p *policyv1alpha2.ClusterNetworkPolicy, kind networkingv1.PolicyType, own *corev1.Pod) bool {
	if kind == networkingv1.PolicyTypeIngress && len(p.Spec.Ingress) == 0 || kind == networkingv1.PolicyTypeEgress && len(p.Spec.Egress) == 0 {
		return false
	}
	return w.isPeer(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, own)
}

func (w *world) isPeer(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod, p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	l, known := w.namespaces[p.Namespace]
	switch {
	case !known:
		return false
	case pods != nil:
		return selects(w.t, &pods.NamespaceSelector, l) && selects(w.t, &pods.PodSelector, p.Labels)
	}
	return namespaces != nil && selects(w.t, namespaces, l)
}

// clusterAction is that of the first rule of a tier that is about a connection, Pass if there is
// none.
func (w *world) clusterAction(tier policyv1alpha2.Tier, kind networkingv1.PolicyType, own, peer *corev1.Pod, address netip.Addr,
	to *corev1.Pod,
	c rules.Connection,
) policyv1alpha2.ClusterNetworkPolicyRuleAction {
	ordered := slices.SortedFunc(maps.Values(w.cluster), func(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
		return cmp.Or(cmp.Compare(a.Spec.Priority, b.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range ordered {
		if p.Spec.Tier != tier || !w.isSubject(p, kind, own) {
			continue
		}
		if kind == networkingv1.PolicyTypeIngress {
			for _, r := range p.Spec.Ingress {
				if w.isProtocol(r.Protocols, to, c) && slices.ContainsFunc(r.From, func(p policyv1alpha2.ClusterNetworkPolicyIngressPeer) bool {
					return w.isPeer(p.Namespaces, p.Pods, peer)
				}) {
					return r.Action
				}
			}
			continue
		}
		for _, r := range p.Spec.Egress {
			if w.isProtocol(r.Protocols, to, c) && slices.ContainsFunc(r.To, func(p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
				return w.isPeer(p.Namespaces, p.Pods, peer) || slices.ContainsFunc(p.Networks, func(n policyv1alpha2.CIDR) bool {
					return inBlock(w.t, &networkingv1.IPBlock{CIDR: string(n)}, address)
				})
			}) {
				return r.Action
			}
		}
	}
	return policyv1alpha2.ClusterNetworkPolicyRuleActionPass
}

func (w *world) isProtocol(all []policyv1alpha2.ClusterNetworkPolicyProtocol, to *corev1.Pod, c rules.Connection) bool {
	is := func(protocol byte, p *policyv1alpha2.Port) bool {
		port := int32(c.Destination.Port())
		return c.Protocol == protocol && (p == nil || p.Number == port || p.Range != nil && p.Range.Start <= port && port <= p.Range.End)
	}
	return len(all) == 0 || slices.ContainsFunc(all, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
		switch {
		case p.TCP != nil:
			return is(tcp, p.TCP.DestinationPort)
		case p.UDP != nil:
			return is(udp, p.UDP.DestinationPort)
		case p.SCTP != nil:
			return is(sctp, p.SCTP.DestinationPort)
		case to == nil:
			return false
		}
		return slices.ContainsFunc(to.Spec.Containers[0].Ports, func(has corev1.ContainerPort) bool {
			return has.Name == p.DestinationNamedPort && is(protocols[has.Protocol], &policyv1alpha2.Port{Number: has.ContainerPort})
		})
	})
}

func (w *world) matches(ns string, kind networkingv1.PolicyType, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort,
	peer *corev1.Pod, address netip.Addr, to *corev1.Pod, c rules.Connection,
) bool {
	byNumber, byName := len(ports) == 0, false
	for _, p := range ports {
		number, name := matchesPort(p, to, c)
		byNumber, byName = byNumber || number, byName || name
	}
	if len(peers) == 0 {
		if byName && kind == networkingv1.PolicyTypeEgress { // no pod is anyone's peer before its namespace is known
			_, byName = w.namespaces[to.Namespace]
		}
		return byNumber || byName
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			if inBlock(w.t, p.IPBlock, address) && (byNumber || byName && kind == networkingv1.PolicyTypeIngress) {
				return true
			}
			continue
		}
		if peer == nil || !byNumber && !byName || p.PodSelector != nil && !selects(w.t, p.PodSelector, peer.Labels) {
			continue
		}
		if p.NamespaceSelector == nil {
			if peer.Namespace == ns {
				return true
			}
			continue
		}
		if l, known := w.namespaces[peer.Namespace]; known && selects(w.t, p.NamespaceSelector, l) {
			return true
		}
	}
	return false
}

func matchesPort(p networkingv1.NetworkPolicyPort, to *corev1.Pod, c rules.Connection) (number, name bool) {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	if protocols[protocol] != c.Protocol {
		return false, false
	}
	port := int32(c.Destination.Port())
	switch {
	case p.Port == nil:
		return true, false
	case p.Port.Type == intstr.String:
		if to == nil {
			return false, false
		}
		for _, container := range to.Spec.Containers {
			for _, has := range container.Ports {
				if has.Name == p.Port.StrVal && has.Protocol == protocol {
					return false, has.ContainerPort == port
				}
			}
		}
		return false, false
	case p.EndPort != nil:
		return p.Port.IntVal <= port && port <= *p.EndPort, false
	}
	return p.Port.IntVal == port, false
}

func selects(t testing.TB, s *metav1.LabelSelector, l map[string]string) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(labels.Set(l))
}

func inBlock(t testing.TB, b *networkingv1.IPBlock, a netip.Addr) bool {
	t.Helper()
	in := func(text string) bool {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		return p.Contains(a)
	}
	return in(b.CIDR) && !slices.ContainsFunc(b.Except, in)
}

// newPod returns a pod with an address in each family, made of its number.
func newPod(ns, name string, number byte, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(ns + "-" + name), Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{NodeName: here, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "web", ContainerPort: 80, Protocol: corev1.ProtocolTCP}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP},
		}}}},
		Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", number)}, {IP: fmt.Sprintf("fd00::%x", number)}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

var (
	tcp, udp, sctp = byte(unix.IPPROTO_TCP), byte(unix.IPPROTO_UDP), byte(unix.IPPROTO_SCTP)
	icmp           = byte(unix.IPPROTO_ICMP)
)

// connections yields one of each kind between addresses, of which one at least is a pod's.
func (w *world) connections(yield func(rules.Connection) bool) {
	all := map[netip.Addr]bool{}
	for _, p := range w.pods {
		for _, a := range Addresses(p) {
			all[a] = true
		}
	}
	outside := []string{"203.0.113.5", "198.51.100.7", "2001:db8::5", "2001:db8:7::7"}
	for _, a := range outside {
		all[netip.MustParseAddr(a)] = true
	}
	addresses := slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
	for _, s := range addresses {
		for _, d := range addresses {
			if s.Is4() != d.Is4() {
				continue
			}
			for _, port := range []struct {
				protocol byte
				port     uint16
			}{{tcp, 80}, {tcp, 81}, {tcp, 8080}, {udp, 53}, {udp, 80}, {sctp, 80}, {icmp, 0}} {
				c := rules.Connection{
					Protocol: port.protocol, Source: netip.AddrPortFrom(s, 40000), Destination: netip.AddrPortFrom(d, port.port),
				}
				if !yield(c) {
					return
				}
			}
		}
	}
}

// compare compares the rules with what the documentation says of the objects.
func (w *world) compare() {
	w.t.Helper()
	w.ruled = map[bool]int{}
	for c := range w.connections {
		w.explained(c)
		if got, want := w.rules.Allowed(c), w.allowed(c); got != want {
			w.t.Errorf("%d %s to %s: allowed %v, want %v", c.Protocol, c.Source.Addr(), c.Destination, got, want)
			if w.t.Failed() {
				w.t.FailNow()
			}
		}
	}
}

// explained checks that Explain says of a connection what the rules do, and names policies that say
// so.
func (w *world) explained(c rules.Connection) {
	w.t.Helper()
	e := w.state.Explain(c)
	if got, want := e.Egress.Allowed && e.Ingress.Allowed, w.rules.Allowed(c); got != want {
		w.t.Fatalf("%d %s to %s: explained as %+v, the rules say %v", c.Protocol, c.Source.Addr(), c.Destination, e, want)
	}
	for _, h := range []Half{e.Egress, e.Ingress} {
		tiered, isolated := false, false
		for _, name := range h.Selecting {
			tiered, isolated = tiered || name.Namespace == "", isolated || name.Namespace != ""
		}
		if h.Unplaced || tiered {
			says := !h.Unplaced && (!isolated || len(h.Allowing) > 0)
			if h.Ruling != nil && !h.Unplaced {
				says = h.Ruling.Accepted
				w.ruled[says]++
			}
			if h.Allowed != says {
				w.t.Fatalf("%d %s to %s: explained as %+v", c.Protocol, c.Source.Addr(), c.Destination, h)
			}
			continue
		}
		if isolated := h.Kind == Here && len(h.Selecting) > 0; isolated && h.Allowed != (len(h.Allowing) > 0) ||
			len(h.Allowing) > len(h.Selecting) {
			w.t.Fatalf("%d %s to %s: explained as %+v", c.Protocol, c.Source.Addr(), c.Destination, h)
		}
	}
}
