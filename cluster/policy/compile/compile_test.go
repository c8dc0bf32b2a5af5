package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

func (w *world) want(allowed bool, connections ...string) {
	w.t.Helper()
	for _, each := range connections {
		for family := range 2 {
			if c, ok := w.connection(each, family); ok && w.rules.Allowed(c) != allowed {
				w.t.Errorf("%s (%s): allowed %v, want %v", each, c.Destination.Addr(), !allowed, allowed)
			}
		}
	}
	w.compare()
}

func (r Result) size() int {
	return len(r.Change.Idents) + len(r.Change.Pods) + len(r.Change.Classes[rules.Ingress]) + len(r.Change.Classes[rules.Egress])
}

const allowFromB = "spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}"

// A pod's start and end change its own elements only, unless it is the first or last of its kind.
func TestAPodChangesItsOwnElements(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	second := newPod("x", "b2", 50, func(p *corev1.Pod) { p.Labels["pod"] = "b" })
	w.pod(second)
	if r := w.take(); r.size() != 4 || len(r.Change.Idents) != 2 || len(r.Change.Pods) != 2 {
		t.Errorf("a pod like another one changes %+v", r.Change)
	}
	w.want(true, "x/b2 x/a:80")
	other := newPod("x", "other", 51, nil)
	w.pod(other)
	if r := w.take(); r.size() != 2 || len(r.Change.Pods) != 2 {
		t.Errorf("a pod that no peer selects changes %+v", r.Change)
	}
	w.removePod(second)
	w.removePod(other)
	if r := w.take(); r.size() != 6 || len(r.Gone) != 4 {
		t.Errorf("their end changes %+v, gone are %v", r.Change, r.Gone)
	}
	w.want(false, "x/c x/a:80")
}

// What policies do not depend on changes nothing.
func TestUnimportantChanges(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	for _, p := range slices.Clone(w.pods) {
		p = p.DeepCopy()
		p.Annotations, p.Status.Phase, p.Generation = map[string]string{"a": "b"}, corev1.PodRunning, 7
		w.pod(p)
	}
	for _, p := range w.policies {
		p = p.DeepCopy()
		p.Labels = map[string]string{"a": "b"}
		w.policy(p)
	}
	w.namespace("x", maps.Clone(w.namespaces["x"]))
	if w.state.Pending() {
		t.Error("there is something to look at")
	}
	changed := w.pods[0].DeepCopy()
	changed.Labels["unimportant"] = "x"
	w.pod(changed)
	w.namespace("x", map[string]string{"ns": "x", "unimportant": "x"})
	if r := w.take(); r.size() != 0 || len(r.Recheck) != 0 {
		t.Errorf("labels that no selector names change %+v, recheck %v", r.Change, r.Recheck)
	}
}

// Another policy for the same pods changes their class and no element of a pod.
func TestPodsKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	w.policy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "more"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "a"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
					Key: "pod", Operator: metav1.LabelSelectorOpIn,
					Values: []string{"b"},
				}}},
			}}}},
		},
	})
	if r := w.take(); r.size() != 0 {
		t.Errorf("a policy that says the same changes %+v", r.Change)
	}
	w.policy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "more"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "a"}},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(81))}}}},
		},
	})
	if r := w.take(); r.size() != 1 || len(r.Change.Classes[rules.Ingress]) != 1 || len(r.Recheck) != 0 {
		t.Errorf("a policy that allows more changes %+v, recheck %v", r.Change, r.Recheck)
	}
	w.want(true, "z/a x/a:81")
}

func TestPolicyThatIsGone(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	for _, p := range w.policies {
		w.removePolicy(p)
	}
	w.take()
	w.want(true, "x/c x/a:80")
	s := w.state
	if len(s.scopes) != 0 || len(s.identities.cells) != 0 || len(s.classes[rules.Ingress].cells) != 0 || s.kept != (extent{}) ||
		s.Policies() != 0 || len(w.idents) != 0 {
		t.Errorf("left are %d scopes, %d identities, %d classes, %v", len(s.scopes), len(s.identities.cells), len(s.classes[0].cells), s.kept)
	}
	for _, p := range slices.Clone(w.pods) {
		w.removePod(p)
	}
	w.take()
	for name := range w.namespaces {
		w.removeNamespace(name)
	}
	if len(s.pods)+len(s.addresses)+len(s.namespaces)+len(s.dirty)+len(s.moved) != 0 {
		t.Errorf("left are %d pods, %d addresses, %d namespaces", len(s.pods), len(s.addresses), len(s.namespaces))
	}
}

// While there is no policy nothing is kept of pods that are gone.
func TestNothingIsKeptWithoutPolicies(t *testing.T) {
	t.Parallel()
	s := New(here, DefaultLimits)
	s.SetNamespace("x", nil)
	for i := range 10_000 {
		p := newPod("x", fmt.Sprint(i), 1, func(p *corev1.Pod) { p.Status.PodIPs[0].IP = fmt.Sprintf("10.1.%d.%d", i/256, i%256) })
		s.SetPod(IDOf(p), p, Addresses(p), i%2 == 0)
		s.DeletePod(IDOf(p))
	}
	if len(s.pods)+len(s.addresses)+len(s.dirty)+len(s.moved) != 0 {
		t.Errorf("left are %d pods, %d addresses, %d to look at", len(s.pods), len(s.addresses), len(s.moved))
	}
}

func TestPodsThatHaveNoPart(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply("spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}}]}]}")
	w.want(true, "y/a x/a:80")
	for name, change := range map[string]func(*corev1.Pod){
		"ended":        func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":       func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"host network": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"no address":   func(p *corev1.Pod) { p.Status.PodIPs = nil },
		"no number":    func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.999"}} },
	} {
		of := func(ns string, pod byte) *corev1.Pod { return newPod(ns, "odd", pod, change) }
		peer, own := of("y", 60), of("x", 61)
		w.pod(peer)
		w.pod(own)
		w.take()
		for _, a := range []string{"10.0.0.60", "10.0.0.61", "fd00::3c", "fd00::3d"} {
			a := netip.MustParseAddr(a)
			if _, has := w.of[a]; has || w.idents[a] != 0 {
				t.Errorf("%s: %s has classes or an identity", name, a)
			}
		}
	}
	// One that runs, and ends.
	p := newPod("y", "odd", 60, nil)
	w.pod(p)
	w.take()
	w.want(true, "y/odd x/a:80")
	p = p.DeepCopy()
	p.Status.Phase = corev1.PodSucceeded
	w.pod(p)
	w.take()
	w.want(false, "y/odd x/a:80")
}

// An address belongs to the pod that got it last. The one before may not be known to have ended.
func TestAnAddressThatTwoPodsHave(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	old := newPod("x", "b-old", 70, func(p *corev1.Pod) { p.Labels["pod"] = "b" })
	w.pod(old)
	w.take()
	w.want(true, "10.0.0.70 x/a:80")
	next := newPod("x", "c-new", 70, func(p *corev1.Pod) { p.Labels["pod"] = "c" })
	w.pod(next)
	r := w.take()
	w.want(false, "10.0.0.70 x/a:80")
	if a := netip.MustParseAddr("10.0.0.70"); !r.Gone[a] || !r.Recheck[a] {
		t.Errorf("connections of the pod before are not looked for: %v, %v", r.Gone, r.Recheck)
	}
	w.pod(old.DeepCopy()) // its status is written once more
	w.take()
	w.want(false, "10.0.0.70 x/a:80")
	w.removePod(next)
	w.take()
	w.want(true, "10.0.0.70 x/a:80")

	// The kubelet knows better.
	w.pod(next)
	w.state.SetPod(IDOf(old), old, Addresses(old), true)
	w.take()
	if c, _ := w.connection("10.0.0.70 x/a:80", 0); !w.rules.Allowed(c) {
		t.Error("a pod that was admitted has not got the address")
	}
}

// The first packet of a pod that is admitted finds the rules, so nothing of it needs to be looked
// for.
func TestAdmittedPod(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	// What the API tells may be late: here it has not told of the binding.
	p := newPod("x", "a2", 80, func(p *corev1.Pod) { p.Labels["pod"], p.Status.PodIPs, p.Spec.NodeName = "a", nil, "" })
	address := netip.MustParseAddr("10.0.0.80")
	w.state.SetPod(IDOf(p), p, []netip.Addr{address}, true)
	r := w.take()
	if r.size() != 1 || r.Change.Pods[address] == nil || *r.Change.Pods[address] == (rules.Pod{}) || len(r.Recheck)+len(r.Gone) != 0 {
		t.Errorf("change %+v, recheck %v", r.Change, r.Recheck)
	}
	if !w.state.Isolated(IDOf(p)) {
		t.Error("it is not isolated")
	}
	w.policy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "egress"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: p.Labels},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	})
	if r := w.take(); !r.Recheck[address] {
		t.Errorf("its connections are not looked for when another policy comes: %v", r.Recheck)
	}
	late := newPod("x", "a3", 81, func(p *corev1.Pod) { p.Labels["pod"] = "a" })
	w.pod(late)
	if r := w.take(); len(r.Recheck) != 2 {
		t.Errorf("connections of a pod that was not admitted are not looked for: %v", r.Recheck)
	}
}

// A pod gets the address of another one of its class, which is still known.
func TestAddressOfAPodLikeIt(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply(allowFromB)
	like := func(name string) *corev1.Pod {
		return newPod("x", name, 80, func(p *corev1.Pod) { p.Labels["pod"] = "a" })
	}
	old, next := like("a2"), like("a3")
	address := netip.MustParseAddr("10.0.0.80")
	admit := func(p *corev1.Pod) Result {
		w.state.SetPod(IDOf(p), p, []netip.Addr{address}, true)
		w.state.Claim(IDOf(p))
		return w.state.Take()
	}
	admit(old)
	if r := admit(next); !r.Gone[address] || r.Change.Pods[address] == nil {
		t.Errorf("connections of the pod before do not end before the new one starts: gone %v, change %+v", r.Gone, r.Change)
	}
	w.state.SetPod(IDOf(old), old.DeepCopy(), []netip.Addr{address}, true) // its status is written once more
	if r := w.state.Take(); len(r.Gone) != 0 || r.size() != 0 {
		t.Errorf("the pod before has taken its address back: %+v, gone %v", r.Change, r.Gone)
	}
}

func TestNamespaceThatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.apply("spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: bad, operator: DoesNotExist}]}}]}]}")
	w.pod(newPod("early", "a", 90, nil))
	w.take()
	w.want(false, "early/a x/a:80")
	w.namespace("early", nil)
	w.take()
	w.want(true, "early/a x/a:80")
	w.namespace("early", map[string]string{"bad": "yes"})
	if r := w.take(); !r.Recheck[netip.MustParseAddr("10.0.0.90")] {
		t.Errorf("connections of a namespace that was relabelled are not looked for: %v", r.Recheck)
	}
	w.want(false, "early/a x/a:80")
}

func TestNamedPortsOfSeveralPods(t *testing.T) {
	t.Parallel()
	w := model(t)
	port := func(n int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = n }
	}
	w.pod(newPod("x", "v2", 40, port(8080)))
	w.pod(newPod("z", "far2", 41, func(p *corev1.Pod) { p.Spec.NodeName = "there"; port(8080)(p) }))
	w.pod(newPod("x", "none", 42, func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }))
	w.pod(newPod("x", "sidecar", 43, func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = nil
		p.Spec.InitContainers = []corev1.Container{
			{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 7, Protocol: corev1.ProtocolTCP}}},
			{
				RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
				Ports:         []corev1.ContainerPort{{Name: "web", ContainerPort: 81, Protocol: corev1.ProtocolTCP}},
			},
		}
	}))
	w.take()
	policy := "spec: {podSelector: {}, ingress: [{ports: [{port: web}]}], egress: [{to: [{namespaceSelector: {}}], ports: [{port: web}]}]}"
	w.apply(policy)
	allowed := func(text string, want bool) {
		t.Helper()
		if c, _ := w.connection(text, 0); w.rules.Allowed(c) != want {
			t.Errorf("%s: allowed %v", text, !want)
		}
	}
	allowed("y/a x/v2:8080", true)
	allowed("y/a x/v2:80", false)
	allowed("y/a x/a:80", true)
	allowed("y/a x/none:80", false)
	allowed("y/a x/sidecar:81", true)
	allowed("y/a x/sidecar:7", false)
	allowed("x/a z/far2:8080", true)
	allowed("x/a z/far2:80", false)
	allowed("x/a z/far:80", true)
}

// A static pod and its mirror pod are one.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	static := newPod("x", "s", 1, func(p *corev1.Pod) { p.UID = "hash" })
	mirror := newPod("x", "s", 1, func(p *corev1.Pod) {
		p.Annotations = map[string]string{kubetypes.ConfigMirrorAnnotationKey: "hash"}
	})
	forged := newPod("evil", "s", 1, func(p *corev1.Pod) {
		p.Annotations = map[string]string{kubetypes.ConfigMirrorAnnotationKey: "hash"}
	})
	if IDOf(static) != IDOf(mirror) || IDOf(static) == IDOf(forged) {
		t.Errorf("%v, %v, %v", IDOf(static), IDOf(mirror), IDOf(forged))
	}
}

// What the API server refuses, or did not in an earlier release, allows nothing and is told.
func TestWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	const head = "spec: {podSelector: {}, policyTypes: [Ingress, Egress], "
	for spec, want := range map[string]string{
		"ingress: [{ports: [{protocol: ICMP}]}]":                                                                   `ingress[0].ports[0]: protocol "ICMP" is none of TCP, UDP and SCTP`,
		"ingress: [{ports: [{port: 0}]}]":                                                                          "ingress[0].ports[0]: ports 0 to 0 are none from 1 to 65535",
		"ingress: [{ports: [{port: 70000}]}]":                                                                      "ports 70000 to 70000",
		"ingress: [{ports: [{port: 90, endPort: 80}]}]":                                                            "ports 90 to 80",
		"ingress: [{ports: [{endPort: 80}]}]":                                                                      "endPort 80 without a port",
		"ingress: [{ports: [{port: web, endPort: 80}]}]":                                                           `endPort 80 with port "web"`,
		"ingress: [{from: [{}]}]":                                                                                  "ingress[0].from[0]: neither a selector nor an ipBlock",
		"ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/40}}]}]":                                                      `"10.0.0.0/40" is no network`,
		"ingress: [{from: [{ipBlock: {cidr: 10.0.0.0}}]}]":                                                         `"10.0.0.0" is no network`,
		"ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [x]}}]}]":                                           `except: "x" is no network`,
		"ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}, podSelector: {}}]}]":                                       "ipBlock with a selector",
		"egress: [{to: [{podSelector: {matchLabels: {a: 'b c'}}}]}]":                                               "egress[0].to[0]: podSelector: ",
		"egress: [{to: [{namespaceSelector: {matchExpressions: [{key: a, operator: Near}]}}]}]":                    "egress[0].to[0]: namespaceSelector: ",
		"egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: web}]}]":                                     "ports by name are those of pods",
		"egress: [{to: [{podSelector: {matchExpressions: [{key: a, operator: In, values: ['_b']}]}}], ports: []}]": "podSelector: ",
	} {
		t.Run(spec, func(t *testing.T) {
			w := model(t)
			w.apply(head + spec + "}")
			if len(w.problems) != 1 || w.problems[0].Reason != ReasonInvalid || !strings.Contains(w.problems[0].Message, want) {
				t.Errorf("problems %v, want %q", w.problems, want)
			}
			for _, text := range []string{"y/a x/a:80", "x/a y/a:80", "x/a 203.0.113.5:80", "203.0.113.5 x/a:0/icmp"} {
				if c, _ := w.connection(text, 0); w.rules.Allowed(c) {
					t.Errorf("%s is allowed", text)
				}
			}
		})
	}
	t.Run("podSelector", func(t *testing.T) {
		w := model(t)
		w.apply("spec: {podSelector: {matchLabels: {a: 'b c'}}, ingress: [{}]}")
		if c, _ := w.connection("y/a x/a:80", 0); w.rules.Allowed(c) || len(w.problems) != 1 {
			t.Errorf("a policy for pods that cannot be known isolates none: problems %v", w.problems)
		}
	})
}

// CIDRs of earlier releases' objects mean what they meant.
func TestOldCIDRs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"010.0.0.0/8": "10.0.0.0 10.255.255.255", "10.1.2.3/24": "10.1.2.0 10.1.2.255", "::ffff:10.0.0.0/104": "10.0.0.0 10.255.255.255",
		"0.0.0.0/0": "0.0.0.0 255.255.255.255", "::/0": ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "10.0.0.1/32": "10.0.0.1 10.0.0.1",
		"2001:db8::/33": "2001:db8:: 2001:db8:7fff:ffff:ffff:ffff:ffff:ffff", "10.0.0.0/31": "10.0.0.0 10.0.0.1",
	} {
		s, err := parseCIDR(text)
		if got := s.first.String() + " " + s.last.String(); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", text, got, err, want)
		}
	}
}

// A process that starts again gives pods the numbers that the kernel has.
func TestNumbersOutliveTheProcess(t *testing.T) {
	t.Parallel()
	before := model(t)
	before.apply("spec: {podSelector: {matchLabels: {pod: c}}, policyTypes: [Egress]}\n---\n" + allowFromB)
	w := newWorld(t, DefaultLimits)
	maps.Copy(w.namespaces, before.namespaces)
	for name, l := range before.namespaces {
		w.namespace(name, l)
	}
	for _, p := range before.policies {
		w.policy(p)
	}
	for _, p := range slices.Backward(before.pods) {
		w.pod(p)
	}
	odd := newPod("x", "b-odd", 30, func(p *corev1.Pod) { p.Labels["pod"] = "other" })
	w.pod(odd)
	w.policy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "odd"},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: odd.Labels}},
	})
	w.state.Wish(before.idents, before.of)
	w.take()
	for a, n := range before.idents {
		if w.idents[a] != n {
			t.Errorf("%s has the identity %d, it was %d", a, w.idents[a], n)
		}
	}
	for a, p := range before.of {
		if w.of[a] != p {
			t.Errorf("%s has the classes %v, they were %v", a, w.of[a], p)
		}
	}
	w.compare()
}

// A rule that names a port instead of its number divides pods that were one class.
func TestPolicyThatNamesAPortLater(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.pod(newPod("x", "v2", 40, func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 8080 }))
	w.apply("spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}")
	w.want(true, "y/a x/a:80", "y/a x/v2:80")
	w.apply("spec: {podSelector: {}, ingress: [{ports: [{port: web}]}]}")
	w.want(true, "y/a x/a:80", "y/a x/v2:8080")
	w.want(false, "y/a x/v2:80", "y/a x/a:8080")
}
