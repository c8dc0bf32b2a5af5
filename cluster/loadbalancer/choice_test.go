package loadbalancer

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func machine(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(n)
	}
	return n
}

func unready(n *corev1.Node)  { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func excluded(n *corev1.Node) { n.Labels[corev1.LabelNodeExcludeBalancers] = "" }

func TestWhichNodesTakeConnections(t *testing.T) {
	at := func(nodes ...string) []*discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{}
		for _, n := range nodes {
			name, isReady := strings.CutPrefix(n, "!")
			isReady = !isReady
			slice.Endpoints = append(slice.Endpoints,
				discoveryv1.Endpoint{NodeName: &name, Conditions: discoveryv1.EndpointConditions{Ready: &isReady}})
		}
		return []*discoveryv1.EndpointSlice{slice}
	}
	for name, test := range map[string]struct {
		nodes []*corev1.Node
		local bool
		at    []*discoveryv1.EndpointSlice
		want  string
	}{
		"all that are ready":           {nodes: []*corev1.Node{machine("c"), machine("b", unready), machine("a")}, want: "a c"},
		"an excluded one does not":     {nodes: []*corev1.Node{machine("a", excluded), machine("b")}, want: "b"},
		"one that is not ready, alone": {nodes: []*corev1.Node{machine("a", unready)}, want: "a"},
		"those with an endpoint": {
			nodes: []*corev1.Node{machine("a"), machine("b"), machine("c")}, local: true, at: at("b", "!c"),
			want: "b",
		},
		"all without any endpoint": {nodes: []*corev1.Node{machine("a"), machine("b")}, local: true, at: at("!a"), want: "a b"},
		"a cluster policy":         {nodes: []*corev1.Node{machine("a"), machine("b")}, at: at("b"), want: "a b"},
		"none":                     {nodes: []*corev1.Node{machine("a", excluded)}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{Spec: corev1.ServiceSpec{ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster}}
			if test.local {
				service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			var got []string
			for _, n := range Candidates(service, test.nodes, func() []*discoveryv1.EndpointSlice { return test.at }) {
				got = append(got, n.Name)
			}
			if all := strings.Join(got, " "); all != test.want {
				t.Errorf("%q, want %q", all, test.want)
			}
		})
	}
}

// One node announces an address. All nodes agree which, addresses spread, and only those of a node
// that goes move.
func TestOneNodeAnnouncesAnAddress(t *testing.T) {
	nodes := []*corev1.Node{machine("a"), machine("b"), machine("c")}
	count := map[string]int{}
	for i := range 300 {
		address := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i % 250)})
		one := Announcer(address, nodes)
		count[one]++
		turned := slices.Clone(nodes)
		slices.Reverse(turned)
		if other := Announcer(address, turned); other != one {
			t.Errorf("%s: %s, and in another order %s", address, one, other)
		}
		if left := Announcer(address, nodes[:2]); one != "c" && left != one {
			t.Errorf("%s moves from %s to %s as c goes", address, one, left)
		}
	}
	for _, n := range nodes {
		if count[n.Name] < 60 {
			t.Errorf("%s has %d of 300 addresses", n.Name, count[n.Name])
		}
	}
	if none := Announcer(netip.MustParseAddr("10.0.0.1"), nil); none != "" {
		t.Errorf("without nodes %q announces", none)
	}
}
