package compile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// dice makes objects of few names and labels, so that they often have to do with each other.
type dice struct{ *rand.Rand }

func of[T any](d dice, all ...T) T { return all[d.IntN(len(all))] }

func (d dice) some(most int) func(yield func(int) bool) {
	n := d.IntN(most + 1)
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func (d dice) labels() map[string]string {
	l := map[string]string{}
	for range d.some(3) {
		l[of(d, "a", "b", "c")] = of(d, "1", "2", "3")
	}
	return l
}

func (d dice) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if d.IntN(2) == 0 {
		s.MatchLabels = d.labels()
	}
	for range d.some(2) {
		r := metav1.LabelSelectorRequirement{Key: of(d, "a", "b", "c"), Operator: of(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
			metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = of(d, []string{"1"}, []string{"2", "1"}, []string{"3", "2", "1"})
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (d dice) ports() (all []networkingv1.NetworkPolicyPort) {
	for range d.some(3) {
		p := networkingv1.NetworkPolicyPort{Protocol: of(d, nil, ptr.To(corev1.ProtocolTCP), ptr.To(corev1.ProtocolUDP), ptr.To(corev1.ProtocolSCTP))}
		p.Port = of(d, nil, ptr.To(intstr.FromInt32(80)), ptr.To(intstr.FromInt32(53)), ptr.To(intstr.FromString("web")), ptr.To(intstr.FromString("dns")))
		if p.Port != nil && p.Port.Type == intstr.Int && d.IntN(3) == 0 {
			p.EndPort = ptr.To(p.Port.IntVal + int32(d.IntN(20)))
		}
		all = append(all, p)
	}
	return all
}

func (d dice) peers() (all []networkingv1.NetworkPolicyPeer) {
	for range d.some(3) {
		p := networkingv1.NetworkPolicyPeer{}
		switch d.IntN(4) {
		case 0:
			p.PodSelector = d.selector()
		case 1:
			p.NamespaceSelector = d.selector()
		case 2:
			p.PodSelector, p.NamespaceSelector = d.selector(), d.selector()
		default:
			p.IPBlock = of(d,
				&networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8", "203.0.113.0/24"}},
				&networkingv1.IPBlock{CIDR: "203.0.113.0/24", Except: []string{"203.0.113.4/31"}},
				&networkingv1.IPBlock{CIDR: "203.0.0.0/8"}, &networkingv1.IPBlock{CIDR: "10.0.0.0/28"},
				&networkingv1.IPBlock{CIDR: "255.0.0.0/8", Except: []string{"255.255.255.255/32"}},
				&networkingv1.IPBlock{CIDR: "::/0", Except: []string{"2001:db8::/64"}}, &networkingv1.IPBlock{CIDR: "2001:db8::/32"},
				&networkingv1.IPBlock{CIDR: "::/0"}, &networkingv1.IPBlock{CIDR: "0.0.0.0/0"})
		}
		all = append(all, p)
	}
	return all
}

func (d dice) policy() *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: of(d, "x", "y", "z"), Name: of(d, "p", "q", "r", "s")},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *d.selector(),
			PolicyTypes: of(d, nil, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
				[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}),
		},
	}
	for range d.some(2) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: d.peers(), Ports: d.ports()})
	}
	for range d.some(2) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: d.peers(), Ports: d.ports()})
	}
	return p
}

func (d dice) pod() *corev1.Pod {
	number := byte(1 + d.IntN(12))
	ns := of(d, "x", "y", "z")
	return newPod(ns, fmt.Sprintf("%s%d", ns, number), number, func(p *corev1.Pod) {
		p.Labels = d.labels()
		p.Spec.NodeName = of(d, here, here, "there")
		p.Spec.Containers[0].Ports[0].ContainerPort = of[int32](d, 80, 80, 8080)
		if d.IntN(5) == 0 {
			p.Spec.Containers[0].Ports = nil
		}
		p.Spec.HostNetwork = d.IntN(15) == 0
		p.Status.Phase = of(d, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded)
		if d.IntN(5) == 0 {
			p.Status.PodIPs = p.Status.PodIPs[:1]
		}
	})
}

// step changes something.
func (d dice) step(w *world) {
	switch d.IntN(12) {
	case 0:
		w.removeNamespace(of(d, "x", "y", "z"))
	case 1, 2:
		w.namespace(of(d, "x", "y", "z"), d.labels())
	case 3:
		if len(w.pods) > 0 {
			w.removePod(of(d, w.pods...))
		}
	case 4, 5, 6:
		p := d.pod()
		// Only its labels, state and addresses can change. Another pod may have had an address
		// before.
		w.removePod(p)
		for _, other := range slices.Clone(w.pods) {
			if slices.ContainsFunc(Addresses(other), func(a netip.Addr) bool { return slices.Contains(Addresses(p), a) }) && d.IntN(2) == 0 {
				w.removePod(other)
			}
		}
		w.pod(p)
	case 7:
		if len(w.pods) > 0 {
			p := of(d, w.pods...).DeepCopy()
			p.Labels = d.labels()
			w.pod(p)
		}
	case 8:
		for _, p := range w.policies { // some
			w.removePolicy(p)
			break
		}
	default:
		w.policy(d.policy())
	}
}

// Whatever happens to objects, in any order, the rules are those that the documentation asks for,
// and every connection that was allowed before and is not now is looked for.
func TestAnyObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := dice{rand.New(rand.NewPCG(seed, 1))}
			w := newWorld(t, DefaultLimits)
			for range 40 {
				before := map[rules.Connection]bool{}
				for c := range w.connections {
					before[c] = w.rules.Allowed(c)
				}
				for range 1 + d.IntN(3) {
					d.step(w)
				}
				if d.IntN(10) == 0 {
					w.state.Reset() // as for a new table
					w.rules, w.classes = rules.NewState(nil), [2]map[uint32]*rules.Class{{}, {}}
					clear(w.idents)
					clear(w.of)
				}
				r := w.take()
				w.compare()
				for c := range w.connections {
					a, b := c.Source.Addr(), c.Destination.Addr()
					known := r.Recheck[a] || r.Recheck[b] || r.Gone[a] || r.Gone[b]
					if before[c] && !w.rules.Allowed(c) && !known {
						t.Fatalf("%d %s to %s is forbidden now, and is not looked for", c.Protocol, a, c.Destination)
					}
				}
			}
		})
	}
}
