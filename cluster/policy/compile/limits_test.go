package compile

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// ranges is a policy for pods of x with a label, with many blocks and ports.
func ranges(name, pod string, blocks, ports int) *networkingv1.NetworkPolicy {
	r := networkingv1.NetworkPolicyIngressRule{}
	for i := range blocks {
		r.From = append(r.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("203.%d.%d.0/31", i/256, i%256)}})
	}
	for i := range ports {
		r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(int32(80 + 2*i)))})
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": pod}},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{r},
		},
	}
}

func (w *world) allows(text string) bool {
	w.t.Helper()
	c, _ := w.connection(text, 0)
	return w.rules.Allowed(c)
}

func TestPolicyWithTooManyRanges(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.limits = Limits{Policy: 100, Class: 150, All: 200, Ranges: 1000}
	w.policy(ranges("most", "a", 50, 2))
	w.take()
	if !w.allows("203.0.49.1 x/a:82") || len(w.problems) != 0 {
		t.Fatalf("a policy at the limit is not enforced: %v", w.problems)
	}
	w.policy(ranges("most", "a", 50, 3))
	r := w.take()
	if w.allows("203.0.49.1 x/a:82") || len(w.problems) != 1 || w.problems[0].Reason != ReasonTooLarge ||
		!strings.Contains(w.problems[0].Message, "at most 100 are enforced") {
		t.Fatalf("a policy beyond the limit allows something, or no one is told: %v", w.problems)
	}
	if !r.Recheck[netip.MustParseAddr("10.0.0.1")] {
		t.Error("connections that it allowed are not looked for")
	}
	if w.state.kept != (extent{}) {
		t.Errorf("%v are kept", w.state.kept)
	}
	w.policy(ranges("most", "a", 50, 1))
	if w.take(); !w.allows("203.0.49.1 x/a:80") {
		t.Error("a policy that was made smaller is not enforced")
	}
}

// Policies that are too large together: those that came first are enforced.
func TestClassWithTooManyRanges(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.limits = Limits{Policy: 100, Class: 150, All: 1000, Ranges: 1000}
	w.policy(ranges("first", "a", 100, 1))
	second := ranges("second", "a", 60, 1)
	second.Spec.Ingress[0].Ports[0].Port = ptr.To(intstr.FromInt32(8080))
	w.policy(second)
	w.take()
	if !w.allows("203.0.49.1 x/a:80") || w.allows("203.0.49.1 x/a:8080") || len(w.problems) != 1 ||
		w.problems[0].Policy.GetName() != "second" {
		t.Errorf("problems: %v", w.problems)
	}
	w.take()
	if len(w.problems) != 1 {
		t.Errorf("it is told again: %v", w.problems)
	}
	w.policy(ranges("first", "a", 10, 1))
	if w.take(); !w.allows("203.0.49.1 x/a:8080") {
		t.Error("there is room, and it is not used")
	}
}

func TestNodeWithTooManyRanges(t *testing.T) {
	t.Parallel()
	t.Run("combinations", func(t *testing.T) { tooManyRanges(t, Limits{Policy: 100, Class: 150, All: 150, Ranges: 1000}) })
	t.Run("ranges", func(t *testing.T) { tooManyRanges(t, Limits{Policy: 100, Class: 150, All: 1000, Ranges: 150}) })
}

func tooManyRanges(t *testing.T, limits Limits) {
	w := model(t)
	w.state.limits = limits
	w.policy(ranges("a", "a", 100, 1))
	w.take()
	w.policy(ranges("b", "b", 100, 1))
	w.take()
	if !w.allows("203.0.49.1 x/a:80") || w.allows("203.0.49.1 x/b:80") || len(w.problems) != 1 || w.problems[0].Policy.GetName() != "b" {
		t.Errorf("problems: %v", w.problems)
	}
	w.removePolicy(ranges("a", "a", 1, 1))
	if w.take(); !w.allows("203.0.49.1 x/b:80") {
		t.Error("there is room, and it is not used")
	}
}

// Ranges in ranges with different ports could be cut into very many, which takes very long.
func TestRangesThatOverlap(t *testing.T) {
	t.Parallel()
	var areas []area
	a := netip.MustParseAddr("10.0.0.0")
	last := netip.MustParseAddr("10.255.255.255")
	for i := range 16 << 10 {
		areas = append(areas, area{span{a, last}, rules.PortRange{Protocol: tcp, First: uint16(1 + 2*i), Last: uint16(1 + 2*i)}})
		a, last = a.Next(), last.Prev()
	}
	began := time.Now()
	if blocks, ok := disjoint(areas, DefaultLimits.Class); ok {
		t.Errorf("%d blocks", len(blocks))
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	w := model(t)
	w.state.limits = Limits{Policy: 100, Class: 20, All: 1000, Ranges: 1000}
	p := ranges("nested", "a", 0, 0)
	for i := range 12 {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From:  []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("203.0.0.0/%d", 8+i)}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(int32(80 + 2*i)))}},
		})
	}
	p.Spec.Ingress = p.Spec.Ingress[1:]
	w.policy(p)
	w.take()
	if w.allows("203.0.0.1 x/a:80") || len(w.problems) != 1 || !strings.Contains(w.problems[0].Message, "overlap in too many ways") {
		t.Errorf("problems: %v", w.problems)
	}
}

// More sets of policies than there are classes leave pods without any connection.
func TestTooManyClasses(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.classes[rules.Ingress].numbers.most = 2
	for _, pod := range []string{"a", "b", "c"} {
		w.policy(ranges(pod, pod, 1, 1))
		w.take()
	}
	allowed := 0
	for _, pod := range []string{"a", "b", "c"} {
		if w.allows("203.0.0.1 x/" + pod + ":80") {
			allowed++
		}
		if w.allows("203.0.0.5 x/" + pod + ":80") {
			t.Errorf("%s is not isolated", pod)
		}
	}
	if allowed != 2 || len(w.problems) != 1 || !strings.Contains(w.problems[0].Message, "different sets of policies") {
		t.Errorf("%d have a class, problems: %v", allowed, w.problems)
	}
	w.removePolicy(ranges("c", "c", 1, 1))
	w.take()
	if !w.allows("203.0.0.5 x/c:80") {
		t.Error("a pod without policies is isolated")
	}
}

// Identities that get no number are no one's peers.
func TestTooManyIdentities(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.identities.numbers.most = 1
	w.apply(
		"spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}, {podSelector: {matchLabels: " +
			"{pod: c}}}]}]}",
	)
	if w.allows("x/b x/a:80") == w.allows("x/c x/a:80") {
		t.Error("both or none is a peer")
	}
}

// A policy whose rules make no sense in thousands of places is told of in a few Events.
func TestFewProblemsAreTold(t *testing.T) {
	t.Parallel()
	w := model(t)
	p := ranges("odd", "a", 1000, 0)
	for i := range p.Spec.Ingress[0].From {
		p.Spec.Ingress[0].From[i].IPBlock.CIDR = fmt.Sprint(i)
	}
	w.policy(p)
	if w.take(); len(w.problems) != maxProblems {
		t.Errorf("%d problems", len(w.problems))
	}
}

func TestDisjoint(t *testing.T) {
	t.Parallel()
	at := func(first, last string) span { return span{netip.MustParseAddr(first), netip.MustParseAddr(last)} }
	ports := func(first, last uint16) rules.PortRange {
		return rules.PortRange{Protocol: tcp, First: first, Last: last}
	}
	for name, test := range map[string]struct {
		areas []area
		want  string
	}{
		"none": {nil, ""},
		"one":  {[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 80)}}, "10.0.0.1-10.0.0.9:80-80"},
		"twice": {
			[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 80)}, {at("10.0.0.1", "10.0.0.9"), ports(80, 80)}},
			"10.0.0.1-10.0.0.9:80-80",
		},
		"touching": {
			[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 80)}, {at("10.0.0.10", "10.0.0.20"), ports(80, 80)}},
			"10.0.0.1-10.0.0.20:80-80",
		},
		"overlapping": {
			[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 80)}, {at("10.0.0.5", "10.0.0.20"), ports(81, 81)}},
			"10.0.0.1-10.0.0.4:80-80 10.0.0.5-10.0.0.9:80-80 10.0.0.5-10.0.0.9:81-81 10.0.0.10-10.0.0.20:81-81",
		},
		"ports that overlap": {
			[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 85)}, {at("10.0.0.1", "10.0.0.9"), ports(85, 90)}},
			"10.0.0.1-10.0.0.9:80-90",
		},
		"all ports win": {
			[]area{{at("10.0.0.1", "10.0.0.9"), ports(80, 85)}, {at("10.0.0.1", "10.0.0.5"), allPorts}},
			"10.0.0.1-10.0.0.5:0-0 10.0.0.6-10.0.0.9:80-85",
		},
		"to the end of IPv4": {
			[]area{{everywhere[0], allPorts}, {at("2001:db8::", "2001:db8::1"), ports(1, 1)}},
			"0.0.0.0-255.255.255.255:0-0 2001:db8::-2001:db8::1:1-1",
		},
		"to the end of both": {
			[]area{{everywhere[0], ports(1, 1)}, {everywhere[1], ports(2, 2)}},
			"0.0.0.0-255.255.255.255:1-1 ::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:2-2",
		},
		"two to the end of IPv4": {
			[]area{{everywhere[0], ports(1, 1)}, {at("128.0.0.0", "255.255.255.255"), ports(2, 2)}},
			"0.0.0.0-127.255.255.255:1-1 128.0.0.0-255.255.255.255:1-1 128.0.0.0-255.255.255.255:2-2",
		},
		"an end before the other": {
			[]area{{everywhere[0], ports(1, 1)}, {at("10.0.0.0", "10.0.0.0"), ports(1, 1)}},
			"0.0.0.0-255.255.255.255:1-1",
		},
	} {
		blocks, ok := disjoint(test.areas, 100)
		var got []string
		for _, b := range blocks {
			got = append(got, fmt.Sprintf("%s-%s:%d-%d", b.First, b.Last, b.Ports.First, b.Ports.Last))
		}
		if text := strings.Join(got, " "); !ok || text != test.want {
			t.Errorf("%s: %s, want %s", name, text, test.want)
		}
	}
}

func TestExceptions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ cidr, except, want string }{
		{"10.0.0.0/24", "", "10.0.0.0-10.0.0.255"},
		{"10.0.0.0/24", "10.0.0.0/25", "10.0.0.128-10.0.0.255"},
		{"10.0.0.0/24", "10.0.0.128/25", "10.0.0.0-10.0.0.127"},
		{"10.0.0.0/24", "10.0.0.16/28 10.0.0.8/29 10.0.0.20/32", "10.0.0.0-10.0.0.7 10.0.0.32-10.0.0.255"},
		{"10.0.0.0/24", "10.0.0.0/24", ""},
		{"10.0.0.0/24", "10.0.0.0/8", ""},
		{"10.0.0.0/24", "11.0.0.0/8 9.0.0.0/8 ::/0", "10.0.0.0-10.0.0.255"},
		{"0.0.0.0/0", "255.255.255.255/32", "0.0.0.0-255.255.255.254"},
		{"0.0.0.0/0", "0.0.0.0/1 128.0.0.0/1", ""},
		{"::/0", "::/1", "8000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		whole, err := parseCIDR(test.cidr)
		if err != nil {
			t.Fatal(err)
		}
		var except []span
		for _, text := range strings.Fields(test.except) {
			e, err := parseCIDR(text)
			if err != nil {
				t.Fatal(err)
			}
			except = append(except, e)
		}
		var got []string
		for _, s := range whole.without(except) {
			got = append(got, s.first.String()+"-"+s.last.String())
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s without %s: %s, want %s", test.cidr, test.except, text, test.want)
		}
	}
}
