package compile

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// applyBoth reads policies of both kinds. A ClusterNetworkPolicy has a tier; its name is "c" and
// its place in the text, unless it has one.
func (w *world) applyBoth(text string) {
	w.t.Helper()
	for i, each := range strings.Split(text, "---\n") {
		if !strings.Contains(each, "tier:") {
			p := &networkingv1.NetworkPolicy{}
			if err := yaml.UnmarshalStrict([]byte(each), p); err != nil {
				w.t.Fatal(err)
			}
			p.Namespace, p.Name = "x", fmt.Sprintf("p%d", i)
			w.policy(p)
			continue
		}
		p := &policyv1alpha2.ClusterNetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte(each), p); err != nil {
			w.t.Fatal(err)
		}
		if p.Name == "" {
			p.Name = fmt.Sprintf("c%d", i)
		}
		w.clusterPolicy(p)
	}
	w.take()
}

// The subject of most cases, and peers.
const (
	ofX      = "subject: {namespaces: {matchLabels: {ns: x}}}"
	fromY    = `{namespaces: {matchLabels: {ns: "y"}}}`
	fromAll  = "{namespaces: {}}"
	isolateX = "spec: {podSelector: {}, policyTypes: [Ingress]}"
	allowXB  = "spec: {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}"
	egressAB = "spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: b}}}]}]}"
)

// Each case is a sentence of the API's documentation.
func TestEachRuleOfTheTiers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, policies   string
		allowed, refused string
	}{
		{
			name:     "the Admin tier accepts what NetworkPolicies forbid",
			policies: isolateX + "\n---\nspec: {tier: Admin, priority: 10, " + ofX + ", ingress: [{action: Accept, from: [" + fromY + "]}]}",
			allowed:  "y/a x/a:80, y/a x/a:0/icmp, y/b x/b:53/udp",
			refused:  "z/a x/a:80, x/b x/a:80, 203.0.113.5 x/a:80, z/host x/a:80",
		},
		{
			name: "the Admin tier denies what NetworkPolicies allow",
			policies: allowXB + "\n---\nspec: {tier: Admin, priority: 10, " + ofX +
				", ingress: [{action: Deny, from: [{pods: {podSelector: {matchLabels: {pod: b}}}}]}]}",
			allowed: "x/b y/a:80, x/b x/b:80",
			refused: "x/b x/a:80, y/b x/a:80, x/c x/a:80",
		},
		{
			name: "Pass leaves it to NetworkPolicies, and skips the tier",
			policies: allowXB + "\n---\nspec: {tier: Admin, priority: 10, " + ofX +
				", ingress: [{action: Pass, from: [{pods: {podSelector: {matchLabels: {ns: none}}}}, " +
				"{namespaces: {matchLabels: {ns: x}}}]}, {action: Deny, from: [" + fromAll + "]}]}",
			allowed: "x/b x/a:80",
			refused: "x/c x/a:80, y/b x/a:80",
		},
		{
			name: "Pass without NetworkPolicies goes to the Baseline tier",
			policies: "spec: {tier: Admin, priority: 10, " + ofX + ", ingress: [{action: Pass, from: [" + fromY + "]}, {action: Accept, from: [" +
				fromAll + "]}]}\n---\nspec: {tier: Baseline, priority: 10, " + ofX + ", ingress: [{action: Deny, from: [" + fromAll + "]}]}",
			allowed: "z/a x/a:80, 203.0.113.5 x/a:80",
			refused: "y/a x/a:80",
		},
		{
			name: "NetworkPolicies override the Baseline tier, in both ways",
			policies: allowXB +
				"\n---\nspec: {tier: Baseline, priority: 10, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {matchLabels: " +
				"{ns: x}}}]}, {action: Accept, from: [" + fromAll + "]}]}",
			allowed: "x/b x/a:80, y/a y/b:80, y/a z/a:80",
			refused: "y/a x/a:80, x/a y/a:80, x/b z/a:80",
		},
		{
			name:     "without a decision all is allowed",
			policies: "spec: {tier: Baseline, priority: 10, " + ofX + ", ingress: [{action: Deny, from: [" + fromY + "]}]}",
			allowed:  "z/a x/a:80, x/b x/a:80, 203.0.113.5 x/a:80, x/a 203.0.113.5:80, z/host x/a:80",
			refused:  "y/a x/a:80, y/a x/a:0/icmp, y/a x/a:7/sctp",
		},
		{
			name: "a lower priority value comes first, whatever the names",
			policies: "metadata: {name: a}\nspec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromAll +
				"]}]}\n---\n" +
				"metadata: {name: b}\nspec: {tier: Admin, priority: 3, " + ofX + ", ingress: [{action: Accept, from: [" + fromY + "]}]}",
			allowed: "y/a x/a:80",
			refused: "z/a x/a:80, x/b x/a:80",
		},
		{
			name: "of the same priority, the first name counts",
			policies: "metadata: {name: b}\nspec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromAll +
				"]}]}\n---\n" +
				"metadata: {name: a}\nspec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Accept, from: [" + fromY + "]}]}",
			allowed: "y/a x/a:80",
			refused: "z/a x/a:80",
		},
		{
			name: "the first rule of a policy that matches decides",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromY +
				"], protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Accept, from: [" + fromY +
				"], protocols: [{tcp: {}}]}, {action: Deny, from: [" + fromY + "]}]}",
			allowed: "y/a x/a:81, z/a x/a:80",
			refused: "y/a x/a:80, y/a x/a:53/udp, y/a x/a:0/icmp",
		},
		{
			name: "a port that is denied leaves the others, and protocols without ports",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromAll +
				"], protocols: [{tcp: {destinationPort: {number: 80}}}, {udp: {destinationPort: {range: {start: 50, end: 60}}}}]}]}",
			allowed: "y/a x/a:79, y/a x/a:81, y/a x/a:80/udp, y/a x/a:80/sctp, y/a x/a:0/icmp, y/a x/a:61/udp",
			refused: "y/a x/a:80, y/a x/a:50/udp, y/a x/a:60/udp, y/a x/a:53/udp",
		},
		{
			name:     "networks are about pods as well",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + `, egress: [{action: Deny, to: [{networks: ["0.0.0.0/0", "::/0"]}]}]}`,
			allowed:  "y/a x/a:80, 203.0.113.5 x/a:80, x/a x/a:80",
			refused:  "x/a y/a:80, x/a x/b:80, x/a 203.0.113.5:80, x/a [2001:db8::5]:80, x/a y/a:0/icmp",
		},
		{
			name: "unless a rule before passes pods on",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + `, egress: [{action: Pass, to: [` + fromAll +
				`]}, {action: Deny, to: [{networks: ["0.0.0.0/0", "::/0"]}]}]}`,
			allowed: "x/a y/a:80, x/a z/far:80",
			refused: "x/a 203.0.113.5:80, x/a [2001:db8::5]:80",
		},
		{
			name: "pods that are denied are not allowed by a network around them",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + `, egress: [{action: Deny, to: [` + fromY +
				`]}, {action: Accept, to: [{networks: ["0.0.0.0/0", "::/0"]}]}]}` +
				"\n---\nspec: {podSelector: {}, policyTypes: [Egress]}",
			allowed: "x/a z/a:80, x/a 203.0.113.5:80, x/a x/b:80",
			refused: "x/a y/a:80, x/b y/c:81",
		},
		{
			name: "and not by those of a NetworkPolicy",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + `, egress: [{action: Deny, to: [` + fromY + `]}]}` +
				"\n---\nspec: {podSelector: {}, egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: \"::/0\"}}]}]}",
			allowed: "x/a z/a:80, x/a 203.0.113.5:80",
			refused: "x/a y/a:80",
		},
		{
			name: "one address of pods that are alike",
			policies: "spec: {tier: Admin, priority: 7, " + ofX +
				`, egress: [{action: Accept, to: [{networks: [10.0.0.4/32]}]}, {action: Deny, to: [` + fromAll + `]}]}`,
			allowed: "x/a 10.0.0.4:80, x/a 203.0.113.5:80",
			refused: "x/a 10.0.0.5:80, x/a fd00::4:80",
		},
		{
			name:     "a policy without rules of a direction says nothing of it",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + ", egress: [{action: Deny, to: [" + fromAll + "]}]}",
			allowed:  "y/a x/a:80, x/a 203.0.113.5:80",
			refused:  "x/a y/a:80",
		},
		{
			name: "an empty namespaceSelector is all namespaces",
			policies: "spec: {tier: Admin, priority: 7, subject: {pods: {podSelector: {matchLabels: {pod: a}}}}, ingress: [{action: Deny, from: " +
				"[{pods: {podSelector: {matchLabels: {pod: b}}}}]}]}",
			allowed: "x/c x/a:80, x/b y/c:80",
			refused: "x/b x/a:80, x/b y/a:80, z/b x/a:80",
		},
		{
			name: "a port's name is that of the destination, of any protocol",
			policies: "spec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromAll +
				"], protocols: [{destinationNamedPort: dns}]}], egress: [{action: Deny, to: [" + fromAll +
				"], protocols: [{destinationNamedPort: web}]}]}",
			allowed: "y/a x/a:80, y/a x/a:53, x/a y/a:53/udp",
			refused: "y/a x/a:53/udp, x/a y/a:80",
		},
		{
			name: "pods of the host's network are no subjects and no peers",
			policies: "spec: {tier: Admin, priority: 7, subject: {namespaces: {}}, ingress: [{action: Deny, from: [" + fromAll +
				"]}], egress: [{action: Deny, to: [" + fromAll + "]}]}",
			allowed: "z/host x/a:80, x/a z/host:80",
			refused: "x/b x/a:80",
		},
		{
			name:     "a NetworkPolicy of the other direction does not isolate",
			policies: egressAB + "\n---\nspec: {tier: Admin, priority: 7, " + ofX + ", ingress: [{action: Deny, from: [" + fromY + "]}]}",
			allowed:  "z/a x/a:80, x/a x/b:80",
			refused:  "y/a x/a:80, x/a z/a:80",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := model(t)
			w.applyBoth(test.policies)
			w.wantBoth(test.allowed, test.refused)
			if len(w.problems) > 0 {
				t.Errorf("problems %v", w.problems)
			}
		})
	}
}

// wantBoth checks connections, and all others against the reference.
func (w *world) wantBoth(allowed, refused string) {
	w.t.Helper()
	for text, want := range map[string]bool{allowed: true, refused: false} {
		if text != "" {
			w.want(want, strings.Split(text, ", ")...)
		}
	}
}

// What is not understood or supported fails closed: a rule that accepts is about nothing, and
// others deny everything. It is told.
func TestRulesThatFailClosed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		direction, peer string
		protocols       string
		reason          string
	}{
		"nodes":                {"egress", "to: [{nodes: {}}]", "", ReasonUnsupported},
		"domain names":         {"egress", "to: [{domainNames: [example.com]}]", "", ReasonUnsupported},
		"another kind of peer": {"egress", "to: [{}]", "", ReasonInvalid},
		"another ingress peer": {"ingress", "from: [{}]", "", ReasonInvalid},
		"no peers":             {"ingress", "from: []", "", ReasonInvalid},
		"one of several":       {"egress", "to: [{namespaces: {}}, {}]", "", ReasonInvalid},
		"no network":           {"egress", "to: [{networks: [everywhere]}]", "", ReasonInvalid},
		"no selector":          {"ingress", "from: [{namespaces: {matchExpressions: [{key: a, operator: Near}]}}]", "", ReasonInvalid},
		"another protocol":     {"ingress", "from: [{namespaces: {}}]", "protocols: [{}]", ReasonInvalid},
		"no port":              {"ingress", "from: [{namespaces: {}}]", "protocols: [{tcp: {destinationPort: {}}}]", ReasonInvalid},
		"a range backwards": {
			"ingress", "from: [{namespaces: {}}]", "protocols: [{udp: {destinationPort: {range: {start: 9, end: 8}}}}]",
			ReasonInvalid,
		},
		"names of ports outside": {"egress", "to: [{networks: [0.0.0.0/0]}]", "protocols: [{destinationNamedPort: web}]", ReasonInvalid},
	} {
		for _, action := range []string{"Accept", "Deny", "Pass", "Audit"} {
			t.Run(name+"/"+action, func(t *testing.T) {
				t.Parallel()
				w := model(t)
				rule := "{action: " + action + ", " + test.peer
				if test.protocols != "" {
					rule += ", " + test.protocols
				}
				p := &policyv1alpha2.ClusterNetworkPolicy{}
				text := "metadata: {name: odd}\nspec: {tier: Admin, priority: 1, " + ofX + ", " + test.direction + ": [" + rule + "}]}"
				if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
					t.Fatal(err)
				}
				w.state.SetClusterPolicy(p) // the reference does not know what fails
				r := w.take()
				reason := test.reason
				if action == "Audit" {
					reason = ReasonInvalid
				}
				if len(r.Problems) == 0 || r.Problems[0].Reason != reason || !strings.Contains(r.Problems[0].Message, test.direction+"[0]") {
					t.Errorf("problems %v, want %s", r.Problems, reason)
				}
				if len(r.Reviews) != 1 || len(r.Reviews[0].Problems) != len(r.Problems) {
					t.Errorf("reviews %v", r.Reviews)
				}
				closed := []string{"y/a x/a:80", "x/b x/a:53/udp", "y/a x/a:0/icmp", "203.0.113.5 x/a:80"}
				open := []string{"x/a 203.0.113.5:80", "x/a y/a:80", "y/a z/a:80"}
				if test.direction == "egress" {
					closed = []string{"x/a 203.0.113.5:80", "x/a [2001:db8::5]:80", "x/a y/a:80", "x/a y/a:0/icmp"}
					open = []string{"203.0.113.5 x/a:80", "y/a x/a:80", "y/a z/a:80"}
				}
				if action == "Accept" {
					open, closed = append(open, closed...), nil
				}
				for _, each := range open {
					if !w.allows(each) {
						t.Errorf("%s is refused", each)
					}
				}
				for _, each := range closed {
					if w.allows(each) {
						t.Errorf("%s is allowed", each)
					}
				}
			})
		}
	}
}

// A policy whose subject makes no sense denies everything to the pods that it may be about, and
// says so. One that would only accept does nothing.
func TestSubjectThatFails(t *testing.T) {
	t.Parallel()
	const near = "{matchExpressions: [{key: a, operator: Near}]}"
	const accepts, denies, passes = "[{action: Accept, from: [{namespaces: {}}]}]",
		"[{action: Deny, from: [{pods: {podSelector: {matchLabels: {pod: none}}}}]}]", "[{action: Pass, from: [{namespaces: {}}]}]"
	all, ofX := []string{"y/a x/a:80", "y/a z/a:80", "203.0.113.5 y/a:80", "y/a x/a:0/icmp"}, []string{"y/a x/a:80", "z/b x/b:53/udp"}
	for _, test := range []struct {
		name, subject, ingress string
		closed, open           []string
	}{
		{"neither", "{}", denies, all, []string{"x/a 203.0.113.5:80"}},
		{"both", "{namespaces: {matchLabels: {ns: x}}, pods: {podSelector: {}}}", denies, all, nil},
		{"namespaces", "{namespaces: " + near + "}", denies, all, nil},
		{
			"pods", "{pods: {namespaceSelector: {matchLabels: {ns: x}}, podSelector: " + near + "}}", denies, ofX,
			[]string{"x/a y/a:80", "y/a z/a:80", "x/a 203.0.113.5:80"},
		},
		{
			"namespaces of pods", "{pods: {namespaceSelector: " + near + ", podSelector: {matchLabels: {pod: a}}}}", denies,
			[]string{"y/b x/a:80", "x/b y/a:80"},
			[]string{"y/a x/b:80"},
		},
		{"pass", "{namespaces: " + near + "}", passes, all, nil},
		{"unknown action", "{namespaces: " + near + "}", "[{action: Audit, from: [{namespaces: {}}]}]", all, nil},
		{"accept", "{namespaces: " + near + "}", accepts, nil, all},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := model(t)
			p := &policyv1alpha2.ClusterNetworkPolicy{}
			if err := yaml.UnmarshalStrict(
				[]byte("metadata: {name: odd}\nspec: {tier: Admin, priority: 1, subject: "+test.subject+", ingress: "+test.ingress+"}"), p,
			); err != nil {
				t.Fatal(err)
			}
			w.take()
			for _, each := range slices.Concat(test.closed, test.open) {
				if !w.allows(each) {
					t.Errorf("without the policy, %s is refused", each)
				}
			}
			w.state.SetClusterPolicy(p)
			r := w.take()
			if len(r.Problems) != 1 || r.Problems[0].Reason != ReasonInvalid || !strings.Contains(r.Problems[0].Message, "subject: ") ||
				strings.Contains(r.Problems[0].Message, "denies") != (test.closed != nil) {
				t.Errorf("problems %v", r.Problems)
			}
			if len(r.Reviews) != 1 || len(r.Reviews[0].Problems) != 1 {
				t.Errorf("reviews %v", r.Reviews)
			}
			for _, each := range test.closed {
				if w.allows(each) {
					t.Errorf("%s is allowed", each)
				}
			}
			for _, each := range test.open {
				if !w.allows(each) {
					t.Errorf("%s is refused", each)
				}
			}
		})
	}
}

// A pod whose namespace is not known may be one that is not to be talked with: it can do nothing
// until it is known.
func TestPodsOfUnknownNamespaces(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.pod(newPod("new", "a", 70, nil))
	w.take()
	w.want(true, "new/a x/a:80", "x/a new/a:80", "new/a z/a:80")
	w.applyBoth("spec: {tier: Admin, priority: 1, " + ofX + ", ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: new}}}]}]}")
	w.want(false, "new/a x/a:80", "x/a new/a:80", "new/a z/a:80")
	w.namespace("new", map[string]string{"ns": "new"})
	if r := w.take(); len(r.Change.Pods) != 2 {
		t.Errorf("its namespace changes %v", r.Change)
	}
	w.want(false, "new/a x/a:80")
	w.want(true, "x/a new/a:80", "new/a z/a:80")
	w.removeNamespace("new")
	w.take()
	w.want(false, "x/a new/a:80")
	w.removeClusterPolicy("c0")
	w.take()
	w.want(true, "new/a x/a:80", "x/a new/a:80")
}

// Without ClusterNetworkPolicies nothing is different: pods of one kind have one ident, in both
// families and in whatever networks, and no class says what blocks do not decide.
func TestNoTiersCostNothing(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.applyBoth(
		"spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{from: [{namespaceSelector: {}}]}], egress: [{to: [{ipBlock: " +
			"{cidr: 10.0.0.4/32}}, {namespaceSelector: {}}]}]}",
	)
	idents := func() int {
		all := map[uint32]bool{}
		for _, n := range w.idents {
			all[n] = true
		}
		return len(all)
	}
	if n := idents(); n != 1 {
		t.Errorf("%d idents for pods that are alike", n)
	}
	policy := "spec: {tier: Admin, priority: 1, " + ofX + `, egress: [{action: Deny, to: [{networks: ["10.0.0.4/31"]}]}]}`
	w.applyBoth(policy)
	if n := idents(); n < 3 {
		t.Errorf("%d idents for pods in and out of a network", n)
	}
	w.removeClusterPolicy("c0")
	w.take()
	if n := idents(); n != 1 {
		t.Errorf("%d idents when the policy is gone", n)
	}
	w.compare() // also the addresses that have another ident again
	for d := range w.classes {
		for n, c := range w.classes[d] {
			if len(c.Decided) > 0 {
				t.Errorf("class %d has decided idents %v", n, c.Decided)
			}
		}
	}
}

// A pod's start changes its own elements only, also with tiers.
func TestAPodInTiersChangesItsOwnElements(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.applyBoth("spec: {tier: Admin, priority: 1, " + ofX +
		", ingress: [{action: Deny, from: [" + fromY + "]}], egress: [{action: Deny, to: [{networks: [203.0.113.0/24]}]}]}")
	w.pod(newPod("y", "more", 50, nil))
	w.pod(newPod("x", "more", 51, nil))
	if r := w.take(); r.size() != 6 || len(r.Change.Idents) != 2 || len(r.Change.Pods) != 4 {
		t.Errorf("pods like others change %+v", r.Change)
	}
	w.want(false, "y/more x/more:80", "x/more 203.0.113.5:80")
}

func TestExplainTiers(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.applyBoth("metadata: {name: wall}\nspec: {tier: Admin, priority: 1, " + ofX +
		", ingress: [{name: no-y, action: Deny, from: [" + fromY +
		"]}, {action: Accept, from: [{pods: {podSelector: {matchLabels: {pod: b}}}}]}]}\n---\n" + isolateX)
	for connection, want := range map[string]string{
		"y/a x/a:80": "false [/wall x/p1] [] &{wall Admin no-y false}",
		"x/b x/a:80": "true [/wall x/p1] [/wall] &{wall Admin ingress[1] true}",
		"z/a x/a:80": "false [/wall x/p1] [] <nil>",
	} {
		c, _ := w.connection(connection, 0)
		h := w.state.Explain(c).Ingress
		ruling := "<nil>"
		if h.Ruling != nil {
			ruling = fmt.Sprintf("&%v", *h.Ruling)
		}
		if got := fmt.Sprintf("%v %v %v %s", h.Allowed, h.Selecting, h.Allowing, ruling); got != want {
			t.Errorf("%s: %s, want %s", connection, got, want)
		}
	}
}

// wall is a policy of many rules for pods of x.
func wall(name string, priority int32, rulesEach int,
	rule func(i int) policyv1alpha2.ClusterNetworkPolicyEgressRule,
) *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{}
	if err := yaml.UnmarshalStrict([]byte("spec: {tier: Admin, "+ofX+"}"), p); err != nil {
		panic(err)
	}
	p.Name, p.Spec.Priority = name, priority
	for i := range rulesEach {
		r := rule(i)
		p.Spec.Egress = append(p.Spec.Egress, r)
		p.Spec.Ingress = append(p.Spec.Ingress, policyv1alpha2.ClusterNetworkPolicyIngressRule{
			Action: r.Action, Protocols: r.Protocols, From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{}}},
		})
	}
	return p
}

// A thousand policies with all rules that the API allows are enforced, and cost little.
func TestManyClusterPolicies(t *testing.T) {
	t.Parallel()
	w := model(t)
	for i := range 1000 {
		p := wall(fmt.Sprintf("%04d", i), int32(i), 25, func(j int) policyv1alpha2.ClusterNetworkPolicyEgressRule {
			n := i*25 + j
			return policyv1alpha2.ClusterNetworkPolicyEgressRule{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
				To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{
					{Networks: []policyv1alpha2.CIDR{policyv1alpha2.CIDR(fmt.Sprintf("203.%d.%d.0/25", n/256, n%256))}},
				},
			}
		})
		for j := range p.Spec.Ingress {
			p.Spec.Ingress[j].Protocols = []policyv1alpha2.ClusterNetworkPolicyProtocol{{
				TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: &policyv1alpha2.Port{Number: int32(1 + 2*((i*25+j)%1000))}},
			}}
		}
		w.state.SetClusterPolicy(p)
	}
	began := time.Now()
	w.take()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if len(w.problems) > 0 {
		t.Fatalf("%d problems, such as %v", len(w.problems), w.problems[0])
	}
	for connection, want := range map[string]bool{
		"x/a 203.0.0.1:80": false, "x/a 203.0.0.128:80": true, "x/a 203.97.167.1:80": false, "x/a 203.97.168.1:80": true,
		"y/a x/a:51": false, "y/a x/a:50": true, "y/a x/a:51/udp": true,
	} {
		if got := w.allows(connection); got != want {
			t.Errorf("%s: allowed %v", connection, got)
		}
	}
}

// What takes too much room or time denies everything to its pods, others go on, and it is told.
func TestClusterPoliciesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	networks := func(i, n int) (all []policyv1alpha2.CIDR) {
		for j := range n {
			all = append(all, policyv1alpha2.CIDR(fmt.Sprintf("203.%d.%d.0/31", i, j)))
		}
		return all
	}
	action := func(a policyv1alpha2.ClusterNetworkPolicyRuleAction, n int) func(i int) policyv1alpha2.ClusterNetworkPolicyEgressRule {
		return func(i int) policyv1alpha2.ClusterNetworkPolicyEgressRule {
			return policyv1alpha2.ClusterNetworkPolicyEgressRule{
				Action: a,
				To:     []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: networks(i, n)}},
			}
		}
	}
	for name, test := range map[string]struct {
		limits  Limits
		policy  *policyv1alpha2.ClusterNetworkPolicy
		message string
	}{
		"policy": {
			Limits{Policy: 100, Class: 1000, All: 10000, Ranges: 1000},
			wall("p", 1, 5, action("Deny", 25)),
			"at most 100 are enforced: they deny everything",
		},
		"class": {
			Limits{Policy: 1000, Class: 100, All: 10000, Ranges: 1000},
			wall("p", 1, 5, action("Deny", 25)),
			"more than 100 combinations",
		},
		"ranges": {Limits{Policy: 1000, Class: 1000, All: 10000, Ranges: 100}, wall("p", 1, 5, action("Deny", 25)), "more than 100 ranges"},
		"accepts": {
			Limits{Policy: 100, Class: 1000, All: 10000, Ranges: 1000},
			wall("p", 1, 5, action("Accept", 25)),
			"at most 100 are enforced: they accept nothing",
		},
	} {
		w := model(t)
		w.state.limits = test.limits
		w.state.SetClusterPolicy(test.policy)
		r := w.take()
		if !slices.ContainsFunc(r.Problems, func(p Problem) bool {
			return p.Reason == ReasonTooLarge && strings.Contains(p.Message, test.message)
		}) {
			t.Errorf("%s: problems %v", name, r.Problems)
		}
		if got := w.allows("x/a 198.51.100.7:80"); got != (name == "accepts") {
			t.Errorf("%s: another address is allowed: %v", name, got)
		}
		if !w.allows("y/a z/a:80") {
			t.Errorf("%s: a pod that no policy is about is isolated", name)
		}
		if len(r.Reviews) != 1 || len(r.Reviews[0].Problems) == 0 {
			t.Errorf("%s: reviews %v", name, r.Reviews)
		}
		w.state.SetClusterPolicy(wall("p", 1, 1, action("Deny", 5)))
		r = w.take()
		if len(r.Reviews) != 1 || len(r.Reviews[0].Problems) != 0 {
			t.Errorf("%s: reviews of a policy that was made smaller: %v", name, r.Reviews)
		}
		if !w.allows("x/a 198.51.100.7:80") || w.allows("x/a 203.0.1.1:80") {
			t.Errorf("%s: a policy that was made smaller is not enforced", name)
		}
	}
}

// Identities that get no number can do nothing where rules deny.
func TestTooManyIdentitiesInTiers(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.identities.numbers.most = 1
	w.applyBoth("spec: {tier: Admin, priority: 1, " + ofX +
		", ingress: [{action: Deny, from: [{pods: {podSelector: {matchLabels: {pod: b}}}}]}, {action: Deny, from: [{pods: {podSelector: " +
		"{matchLabels: {pod: c}}}}]}]}")
	if w.allows("x/b x/a:80") || w.allows("x/c x/a:80") {
		t.Error("a pod that is denied is allowed")
	}
	if !w.allows("x/a x/b:80") {
		t.Error("a pod that no rule is about is denied")
	}
}

// A pod of another node, too.
func TestPeersElsewhere(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.pod(newPod("y", "far", 60, func(p *corev1.Pod) { p.Spec.NodeName = "there" }))
	w.applyBoth("spec: {tier: Baseline, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [" + fromY + "]}]}")
	w.want(false, "y/far x/a:80")
	w.want(true, "x/a y/far:80")
}

func TestPortSets(t *testing.T) {
	t.Parallel()
	set := func(ports ...rules.PortRange) portSet { return newPortSet(ports) }
	r := func(first, last uint16) rules.PortRange {
		return rules.PortRange{Protocol: tcp, First: first, Last: last}
	}
	text := func(s portSet) string { return fmt.Sprint(s.ranges()) }
	for name, test := range map[string]struct{ got, want portSet }{
		"nothing":             {portSet{}.minus(everyPort), set()},
		"all":                 {set(allPorts), everyPort},
		"without a port":      {set(r(1, 9)).minus(set(r(5, 5))), set(r(1, 4), r(6, 9))},
		"without the first":   {set(r(0, 9)).minus(set(r(0, 0))), set(r(1, 9))},
		"without the last":    {set(r(9, 65535)).minus(set(r(65535, 65535))), set(r(9, 65534))},
		"without two":         {set(r(1, 9)).minus(set(r(0, 2), r(8, 20))), set(r(3, 7))},
		"without all of two":  {set(r(1, 2), r(4, 5)).minus(set(r(0, 9))), set()},
		"common":              {set(r(1, 9), r(20, 30)).common(set(r(5, 25))), set(r(5, 9), r(20, 25))},
		"common with nothing": {set(r(1, 9)).common(set()), set()},
		"together":            {set(r(1, 5)).plus(set(r(3, 9))), set(r(1, 9))},
		"single ports":        {set(r(1, 1)).plus(set(r(2, 2))), set(r(1, 1), r(2, 2))},
	} {
		if text(test.got) != text(test.want) {
			t.Errorf("%s: %s, want %s", name, text(test.got), text(test.want))
		}
	}
	rest := everyPort.minus(set(r(80, 80)))
	if got := text(rest); got != "[{6 0 79} {6 81 65535} {17 0 65535} {132 0 65535} {255 0 65535}]" {
		t.Errorf("all but a port is %s", got)
	}
}

func (s portSet) minus(o portSet) portSet  { return s.without(&o) }
func (s portSet) common(o portSet) portSet { return s.and(&o) }
func (s portSet) plus(o portSet) portSet   { return s.or(&o) }

// A policy whose pods have room again, as another one is gone, says so.
func TestRoomAgain(t *testing.T) {
	t.Parallel()
	w := model(t)
	w.state.limits = Limits{Policy: 1000, Class: 1000, All: 10000, Ranges: 100}
	deny := func(i int) policyv1alpha2.ClusterNetworkPolicyEgressRule {
		return policyv1alpha2.ClusterNetworkPolicyEgressRule{
			Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
			To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{
				{Networks: []policyv1alpha2.CIDR{policyv1alpha2.CIDR(fmt.Sprintf("203.0.%d.0/25", i))}},
			},
		}
	}
	w.state.SetClusterPolicy(wall("first", 1, 60, deny))
	w.take()
	second := wall("second", 2, 60, deny)
	second.Spec.Subject.Namespaces.MatchLabels["ns"] = "z"
	w.state.SetClusterPolicy(second)
	r := w.take()
	if len(r.Reviews) != 1 || r.Reviews[0].Policy.Name != "second" || len(r.Reviews[0].Problems) != 1 {
		t.Fatalf("reviews %v", r.Reviews)
	}
	w.state.DeleteClusterPolicy("first")
	r = w.take()
	if len(r.Reviews) != 1 || r.Reviews[0].Policy.Name != "second" || len(r.Reviews[0].Problems) != 0 {
		t.Errorf("reviews %v", r.Reviews)
	}
	if w.allows("z/a 203.0.1.1:80") || !w.allows("z/a 203.0.1.128:80") {
		t.Error("the policy that has room now is not enforced")
	}
}
