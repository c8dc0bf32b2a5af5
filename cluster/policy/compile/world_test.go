package compile

import (
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
	classes    [2]map[uint32]*rules.Class
	idents     map[netip.Addr]uint32
	of         map[netip.Addr]rules.Pod
	problems   []Problem
}

func newWorld(t testing.TB, limits Limits) *world {
	return &world{
		t: t, state: New(here, limits), rules: rules.NewState(nil), namespaces: map[string]map[string]string{},
		policies: map[string]*networkingv1.NetworkPolicy{}, classes: [2]map[uint32]*rules.Class{{}, {}},
		idents: map[netip.Addr]uint32{}, of: map[netip.Addr]rules.Pod{},
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
					if b.First.BitLen() == other.First.BitLen() && !b.Last.Less(other.First) && !other.Last.Less(b.First) && overlap(b.Ports, other.Ports) {
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
	return w.side(networkingv1.PolicyTypeEgress, from, to, destination, to, c) && w.side(networkingv1.PolicyTypeIngress, to, from, source, to, c)
}

// side says whether the policies of one end allow a connection with the other one.
func (w *world) side(kind networkingv1.PolicyType, own, peer *corev1.Pod, address netip.Addr, to *corev1.Pod, c rules.Connection) bool {
	if own == nil || own.Spec.NodeName != here {
		return true
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
	return !isolated
}

func (w *world) matches(ns string, kind networkingv1.PolicyType, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort,
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
	for c := range w.connections {
		if got, want := w.rules.Allowed(c), w.allowed(c); got != want {
			w.t.Errorf("%d %s to %s: allowed %v, want %v", c.Protocol, c.Source.Addr(), c.Destination, got, want)
			if w.t.Failed() {
				w.t.FailNow()
			}
		}
	}
}
