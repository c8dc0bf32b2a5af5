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
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// dice makes objects of few names and labels, so that they often have to do with each other.
type dice struct {
	*rand.Rand
	tiers bool // also ClusterNetworkPolicies
}

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
		p := networkingv1.NetworkPolicyPort{Protocol: of(d, nil, ptr.To(corev1.ProtocolTCP), ptr.To(corev1.ProtocolUDP),
			ptr.To(corev1.ProtocolSCTP))}
		p.Port = of(d, nil, ptr.To(intstr.FromInt32(80)), ptr.To(intstr.FromInt32(53)), ptr.To(intstr.FromString("web")),
			ptr.To(intstr.FromString("dns")))
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
			PolicyTypes: of(d, nil, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				[]networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
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

func (d dice) protocols() (all []policyv1alpha2.ClusterNetworkPolicyProtocol) {
	port := of(d, nil, &policyv1alpha2.Port{Number: 80}, &policyv1alpha2.Port{Number: 53},
		&policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: int32(70 + d.IntN(15)), End: int32(85 + d.IntN(8000))}})
	for range d.some(3) {
		p := policyv1alpha2.ClusterNetworkPolicyProtocol{}
		switch d.IntN(4) {
		case 0:
			p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		default:
			p.DestinationNamedPort = of(d, "web", "dns")
		}
		all = append(all, p)
	}
	return all
}

// clusterPeer is one of pods.
func (d dice) clusterPeer() (p policyv1alpha2.ClusterNetworkPolicyIngressPeer) {
	if d.IntN(2) == 0 {
		p.Namespaces = d.selector()
	} else {
		p.Pods = &policyv1alpha2.NamespacedPod{NamespaceSelector: *of(d, d.selector(), &metav1.LabelSelector{}), PodSelector: *d.selector()}
	}
	return p
}

func (d dice) clusterPolicy() *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: of(d, "p", "q", "r", "s")}}
	p.Spec.Tier = of(d, policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier)
	p.Spec.Priority = int32(d.IntN(3))
	p.Spec.Subject = policyv1alpha2.ClusterNetworkPolicySubject(d.clusterPeer())
	action := func() policyv1alpha2.ClusterNetworkPolicyRuleAction {
		return of(d, policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
			policyv1alpha2.ClusterNetworkPolicyRuleActionPass)
	}
	for range d.some(3) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: d.protocols()}
		for range 1 + d.IntN(3) {
			r.From = append(r.From, d.clusterPeer())
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range d.some(3) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: action(), Protocols: d.protocols()}
		named := slices.ContainsFunc(r.Protocols, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
			return p.DestinationNamedPort != ""
		})
		for range 1 + d.IntN(3) {
			if !named && d.IntN(2) == 0 {
				r.To = append(r.To, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Networks: of(d,
					[]policyv1alpha2.CIDR{"0.0.0.0/0"}, []policyv1alpha2.CIDR{"::/0"}, []policyv1alpha2.CIDR{"10.0.0.0/30", "fd00::/125"},
					[]policyv1alpha2.CIDR{"10.0.0.4/32", "203.0.113.0/24"}, []policyv1alpha2.CIDR{"203.0.113.5/32", "10.0.0.0/8"},
					[]policyv1alpha2.CIDR{"255.255.255.255/32", "fd00::4/127", "10.0.0.8/29"})})
				continue
			}
			peer := d.clusterPeer()
			r.To = append(r.To, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods})
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

// step changes something.
func (d dice) step(w *world) {
	if d.tiers && d.IntN(3) == 0 {
		if d.IntN(3) == 0 {
			w.removeClusterPolicy(of(d, "p", "q", "r", "s"))
		} else {
			w.clusterPolicy(d.clusterPolicy())
		}
		return
	}
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
	t.Run("namespaces' policies", func(t *testing.T) { anyObjects(t, false) })
	t.Run("policies in tiers", func(t *testing.T) { anyObjects(t, true) })
}

func anyObjects(t *testing.T, tiers bool) {
	decided := map[bool]int{} // by ClusterNetworkPolicies
	first := uint64(0)
	if tiers {
		first = 70 // 95 found addresses that kept an ident when the last ClusterNetworkPolicy went
	}
	for seed := first; seed < first+30; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			d := dice{rand.New(rand.NewPCG(seed, 1)), tiers}
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
				for accepted, n := range w.ruled {
					decided[accepted] += n
				}
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
	if tiers && (decided[true] < 1000 || decided[false] < 1000) {
		t.Errorf("ClusterNetworkPolicies decided %v times, so the test shows little", decided)
	}
}
