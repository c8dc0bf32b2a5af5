package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// world is what the API has. No policy of it lets the attacker reach the victim.
type world struct {
	random   *rand.Rand
	pods     map[string]*corev1.Pod
	policies map[string]*networkingv1.NetworkPolicy
	attacker *corev1.Pod
}

const groups = 4

func worldPod(name, role string, group int, addresses ...netip.Addr) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name), Labels: map[string]string{"role": role}},
		Spec:       corev1.PodSpec{NodeName: "here"},
	}
	if group >= 0 {
		p.Labels["group"] = strconv.Itoa(group)
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	return p
}

func newWorld(random *rand.Rand, victim, friend, attacker *testnet.Space) *world {
	w := &world{random: random, pods: map[string]*corev1.Pod{}, policies: map[string]*networkingv1.NetworkPolicy{}}
	for _, s := range []*testnet.Space{victim, friend, attacker} {
		w.pods[s.Name] = worldPod(s.Name, s.Name, -1, s.IPv4, s.IPv6)
	}
	w.attacker = w.pods[attacker.Name]
	w.policies["victim"] = &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "victim"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": victim.Name}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": friend.Name}}},
			}}},
		},
	}
	return w
}

// all are orders that tell of everything.
func (w *world) all() (orders []order) {
	for _, p := range w.pods {
		orders = append(orders, order{Pod: p})
	}
	for _, p := range w.policies {
		orders = append(orders, order{Policy: p})
	}
	return orders
}

// change changes something, and returns what to tell of it.
func (w *world) change() order {
	switch w.random.IntN(8) {
	case 0: // the node does not know whose the attacker's address is
		_, known := w.pods[w.attacker.Name]
		if known {
			delete(w.pods, w.attacker.Name)
		} else {
			w.pods[w.attacker.Name] = w.attacker
		}
		return order{Pod: w.attacker, Gone: known}
	case 1, 2, 3:
		return w.changePod()
	default:
		return w.changePolicy()
	}
}

func (w *world) changePod() order {
	const pods = 30
	i := w.random.IntN(pods)
	name := fmt.Sprint("pod", i)
	if p := w.pods[name]; p != nil && w.random.IntN(2) == 0 {
		delete(w.pods, name)
		return order{Pod: p, Gone: true}
	}
	six := netip.MustParseAddr("fd00:244::100").As16()
	six[15] = byte(i)
	addresses := []netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(100 + i)}), netip.AddrFrom16(six)}
	p := worldPod(name, "other", w.random.IntN(groups), addresses...)
	if w.random.IntN(4) == 0 {
		p.Spec.NodeName = "there"
	}
	_, exists := w.pods[name]
	w.pods[name] = p
	if !exists && p.Spec.NodeName == "here" && w.random.IntN(2) == 0 {
		return order{Pod: p, Addresses: addresses}
	}
	return order{Pod: p}
}

func (w *world) changePolicy() order {
	const policies = 12
	name := fmt.Sprint("policy", w.random.IntN(policies))
	if p := w.policies[name]; p != nil && w.random.IntN(3) == 0 {
		delete(w.policies, name)
		return order{Policy: p, Gone: true}
	}
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name}}
	p.Spec.PodSelector.MatchLabels = map[string]string{"group": strconv.Itoa(w.random.IntN(groups))} // never the victim
	for range w.random.IntN(3) {
		var peer networkingv1.NetworkPolicyPeer
		switch w.random.IntN(4) {
		case 0:
			peer.IPBlock = &networkingv1.IPBlock{CIDR: fmt.Sprintf("203.0.%d.0/24", w.random.IntN(9))}
		case 1:
			peer.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": []string{
				"friend",
				"attacker", "victim",
			}[w.random.IntN(3)]}}
		default:
			peer.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"group": strconv.Itoa(w.random.IntN(groups))}}
		}
		var ports []networkingv1.NetworkPolicyPort
		if first := int32(w.random.IntN(5)); first > 0 {
			ports = []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(first)), EndPort: ptr.To(first + int32(w.random.IntN(3)))}}
		}
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{peer}, Ports: ports})
		if w.random.IntN(2) == 0 {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{peer}, Ports: ports})
		}
	}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	if len(p.Spec.Egress) > 0 {
		p.Spec.PolicyTypes = append(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
	}
	w.policies[name] = p
	return order{Policy: p}
}
