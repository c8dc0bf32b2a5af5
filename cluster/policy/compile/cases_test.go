package compile

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// model is the world of upstream's conformance tests: three namespaces with three pods each.
func model(t testing.TB) *world {
	w := newWorld(t, DefaultLimits)
	number := byte(1)
	for _, ns := range []string{"x", "y", "z"} {
		w.namespace(ns, map[string]string{"ns": ns, "kubernetes.io/metadata.name": ns})
		for _, name := range []string{"a", "b", "c"} {
			w.pod(newPod(ns, name, number, nil))
			number++
		}
	}
	w.pod(newPod("z", "far", number, func(p *corev1.Pod) { p.Spec.NodeName = "there" }))
	w.pod(newPod("z", "host", 99, func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	return w
}

// apply reads policies, of namespace x unless they say so.
func (w *world) apply(text string) {
	w.t.Helper()
	for i, each := range strings.Split(text, "---\n") {
		p := &networkingv1.NetworkPolicy{}
		if err := yaml.UnmarshalStrict([]byte(each), p); err != nil {
			w.t.Fatal(err)
		}
		if p.Namespace == "" {
			p.Namespace = "x"
		}
		p.Name = fmt.Sprintf("p%d", i)
		w.policy(p)
	}
	w.take()
}

// connection reads "x/a y/b:80/udp", with a pod or an address on each side, in the family of index.
func (w *world) connection(text string, family int) (c rules.Connection, ok bool) {
	w.t.Helper()
	address := func(name string) netip.Addr {
		ns, pod, found := strings.Cut(name, "/")
		if !found {
			a, err := netip.ParseAddr(strings.Trim(name, "[]"))
			if err != nil {
				w.t.Fatal(err)
			}
			ok = familyOf(a) == family
			return a
		}
		for _, p := range w.pods {
			if p.Namespace == ns && p.Name == pod {
				return Addresses(p)[family]
			}
		}
		w.t.Fatalf("no pod %s", name)
		return netip.Addr{}
	}
	ok = true
	from, rest, _ := strings.Cut(text, " ")
	end, protocol, found := strings.Cut(rest[strings.LastIndex(rest, ":"):], "/")
	if !found {
		protocol = "tcp"
	}
	port, err := strconv.ParseUint(end[1:], 10, 16)
	if err != nil {
		w.t.Fatal(err)
	}
	c.Protocol = map[string]byte{"tcp": tcp, "udp": udp, "sctp": sctp, "icmp": icmp}[protocol]
	in := true
	c.Source = netip.AddrPortFrom(address(from), 40000)
	in = ok
	ok = true
	c.Destination = netip.AddrPortFrom(address(rest[:strings.LastIndex(rest, ":")]), uint16(port))
	return c, ok && in
}

// Each case is a sentence of the API's documentation, or one of upstream's conformance tests.
func TestEachRuleOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, policies   string
		allowed, refused string
	}{
		{
			name:     "a pod that no policy selects is not isolated",
			policies: "spec: {podSelector: {matchLabels: {pod: other}}}",
			allowed:  "y/a x/a:80, x/a y/a:80, 203.0.113.5 x/a:80, [2001:db8::5] x/a:80, x/a x/b:0/icmp",
		},
		{
			name:     "an empty podSelector selects all pods of the namespace, and no others",
			policies: "spec: {podSelector: {}, policyTypes: [Ingress]}",
			allowed:  "x/a y/a:80, y/a y/b:80, x/a x/a:80",
			refused:  "y/a x/a:80, x/b x/a:80, x/b x/c:53/udp, 203.0.113.5 x/a:80, z/far x/a:80, z/host x/a:80, y/a x/a:0/icmp",
		},
		{
			name:     "deny all egress",
			policies: "spec: {podSelector: {}, policyTypes: [Egress]}",
			allowed:  "y/a x/a:80, x/a x/a:80, 203.0.113.5 x/a:80",
			refused:  "x/a y/a:80, x/a x/b:80, x/a 203.0.113.5:443, x/a z/far:80, x/a [2001:db8::5]:443",
		},
		{
			name:     "deny all of both",
			policies: "spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Ingress, Egress]}",
			allowed:  "x/b x/c:80, y/a x/b:80",
			refused:  "x/a y/a:80, y/a x/a:80, x/a x/b:80, x/b x/a:80",
		},
		{
			name:     "an empty rule allows all",
			policies: "spec: {podSelector: {}, ingress: [{}], egress: [{}], policyTypes: [Ingress, Egress]}",
			allowed:  "y/a x/a:80, 203.0.113.5 x/a:80/sctp, x/a 203.0.113.5:53/udp, x/a y/a:0/icmp, z/host x/a:80",
		},
		{
			name:     "without policyTypes, a policy with ingress rules only is not about egress",
			policies: "spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}",
			allowed:  "x/a y/a:80, x/b x/a:80",
			refused:  "y/a x/a:80",
		},
		{
			name:     "without policyTypes, a policy with egress rules is about both",
			policies: "spec: {podSelector: {}, egress: [{to: [{namespaceSelector: {matchLabels: {ns: 'y'}}}]}]}",
			allowed:  "x/a y/a:80",
			refused:  "y/a x/a:80, x/a z/a:80, x/a x/b:80",
		},
		{
			name:     "rules of a direction that policyTypes lacks do not count",
			policies: "spec: {podSelector: {}, policyTypes: [Egress], ingress: [{from: [{podSelector: {matchLabels: {pod: c}}}]}], egress: [{}]}",
			allowed:  "y/a x/a:80, x/a y/a:80",
		},
		{
			name: "policies add up",
			policies: "spec: {podSelector: {}, policyTypes: [Ingress]}\n---\nspec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: " +
				"[{namespaceSelector: {matchLabels: {ns: 'y'}}}]}]}\n---\nspec: {podSelector: {}, ingress: [{ports: [{port: 81}]}]}",
			allowed: "y/a x/a:80, z/a x/a:81, z/a x/b:81",
			refused: "y/a x/b:80, z/a x/a:80, z/a x/b:80",
		},
		{
			name: "both ends must allow a connection",
			policies: "spec: {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}\n---\nspec: " +
				"{podSelector: {matchLabels: {pod: b}}, policyTypes: [Ingress]}",
			allowed: "x/a x/c:80",
			refused: "x/a x/b:80, x/c x/b:80, x/a y/a:80",
		},
		{
			name:     "podSelector of a peer selects in the policy's namespace",
			policies: "spec: {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}",
			allowed:  "x/b x/a:80",
			refused:  "y/b x/a:80, x/c x/a:80, 203.0.113.5 x/a:80",
		},
		{
			name:     "namespaceSelector of a peer selects all pods of namespaces, also on other nodes",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}",
			allowed:  "z/a x/a:80, z/far x/a:80, z/far x/c:53/udp",
			refused:  "y/a x/a:80, x/b x/a:80, z/host x/a:80",
		},
		{
			name: "both selectors in one peer are one condition",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}, podSelector: {matchLabels: {pod: " +
				"a}}}]}]}",
			allowed: "y/a x/a:80",
			refused: "y/b x/a:80, x/a x/b:80, z/a x/a:80",
		},
		{
			name: "two peers are two conditions",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}}, {podSelector: {matchLabels: " +
				"{pod: a}}}]}]}",
			allowed: "y/b x/b:80, x/a x/b:80",
			refused: "z/a x/b:80, x/c x/b:80",
		},
		{
			name:     "an empty namespaceSelector selects all pods and nothing else",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}], egress: [{to: [{namespaceSelector: {}}]}]}",
			allowed:  "y/a x/a:80, x/a z/far:80",
			refused:  "203.0.113.5 x/a:80, x/a 203.0.113.5:80, x/a [2001:db8::5]:80, z/host x/a:80",
		},
		{
			name: "expressions",
			policies: "spec: {podSelector: {matchExpressions: [{key: pod, operator: In, values: [a, b]}]}, ingress: [{from: [{namespaceSelector: " +
				"{matchExpressions: [{key: ns, operator: NotIn, values: [z]}]}}]}]}",
			allowed: "y/a x/a:80, z/a x/c:80",
			refused: "z/a x/a:80, z/a x/b:80",
		},
		{
			name:     "ports are TCP's unless they say so",
			policies: "spec: {podSelector: {}, ingress: [{ports: [{port: 80}, {port: 53, protocol: UDP}, {port: 81, protocol: SCTP}]}]}",
			allowed:  "y/a x/a:80, 203.0.113.5 x/a:53/udp, y/a x/a:81/sctp",
			refused:  "y/a x/a:80/udp, y/a x/a:80/sctp, y/a x/a:53, y/a x/a:81, y/a x/a:0/icmp",
		},
		{
			name:     "a protocol without a port is all its ports",
			policies: "spec: {podSelector: {}, ingress: [{ports: [{protocol: UDP}]}]}",
			allowed:  "y/a x/a:53/udp, y/a x/a:65535/udp, 203.0.113.5 x/a:1/udp",
			refused:  "y/a x/a:53, y/a x/a:53/sctp, y/a x/a:0/icmp",
		},
		{
			name:     "endPort",
			policies: "spec: {podSelector: {}, egress: [{ports: [{port: 80, endPort: 90}]}], policyTypes: [Egress]}",
			allowed:  "x/a y/a:80, x/a 203.0.113.5:90, x/a y/a:85",
			refused:  "x/a y/a:79, x/a y/a:91, x/a y/a:80/udp",
		},
		{
			name: "peers and ports must both match",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: 'y'}}}], ports: [{port: 80}]}, {from: " +
				"[{namespaceSelector: {matchLabels: {ns: z}}}], ports: [{port: 81}]}]}",
			allowed: "y/a x/a:80, z/a x/a:81",
			refused: "y/a x/a:81, z/a x/a:80",
		},
		{
			name:     "a named port of an ingress rule is that of the pod",
			policies: "spec: {podSelector: {}, ingress: [{ports: [{port: web}, {port: dns, protocol: UDP}, {port: dns}]}]}",
			allowed:  "y/a x/a:80, 203.0.113.5 x/a:53/udp",
			refused:  "y/a x/a:81, y/a x/a:53, y/a x/a:80/udp",
		},
		{
			name:     "a named port of an egress rule is that of each peer",
			policies: "spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}}], ports: [{port: web}]}]}",
			allowed:  "x/a y/a:80, x/a z/far:80",
			refused:  "x/a y/a:81, x/a 203.0.113.5:80, x/a y/a:80/udp",
		},
		{
			name:     "a named port of an egress rule without peers is that of any pod",
			policies: "spec: {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: web}, {port: 81}]}]}",
			allowed:  "x/a y/a:80, x/a y/a:81, x/a 203.0.113.5:81",
			refused:  "x/a 203.0.113.5:80, x/a y/a:8080",
		},
		{
			name: "ipBlock with exceptions",
			policies: "spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24, except: [203.0.113.64/26, 203.0.113.5/32]}}, " +
				"{ipBlock: {cidr: 2001:db8::/32, except: [2001:db8:7::/48]}}]}]}",
			allowed: "203.0.113.4 x/a:80, 203.0.113.6 x/a:80, 203.0.113.63 x/a:80, 203.0.113.128 x/a:80, 203.0.113.255 x/a:80, [2001:db8::5] " +
				"x/a:80/udp, [2001:db8:8::] x/a:80",
			refused: "203.0.113.5 x/a:80, 203.0.113.64 x/a:80, 203.0.113.127 x/a:80, 203.0.114.0 x/a:80, [2001:db8:7::1] x/a:80, [2001:db9::] " +
				"x/a:80, y/a x/a:80",
		},
		{
			name:     "all addresses are of one family",
			policies: "spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}",
			allowed:  "x/a 203.0.113.5:80, x/a 255.255.255.255:1, x/a 0.0.0.1:80/sctp",
			refused:  "x/a [2001:db8::5]:80",
		},
		{
			name: "ipBlock and ports",
			policies: "spec: {podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 443}]}, " +
				"{to: [{ipBlock: {cidr: 203.0.113.0/28}}], ports: [{port: 400, endPort: 500}]}]}",
			allowed: "x/a 203.0.113.5:443, x/a 203.0.113.5:400, x/a 203.0.113.200:443",
			refused: "x/a 203.0.113.200:400, x/a 203.0.113.5:501, x/a 203.0.113.5:443/udp",
		},
		{
			name:     "a namespace by its name",
			policies: "spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: 'y'}}}]}]}",
			allowed:  "y/a x/a:80",
			refused:  "z/a x/a:80",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := model(t)
			w.apply(test.policies)
			tried := 0
			for want, list := range map[bool]string{true: test.allowed, false: test.refused} {
				for _, each := range strings.Split(list, ", ") {
					for family := range 2 {
						if each == "" {
							continue
						}
						c, ok := w.connection(each, family)
						if !ok {
							continue
						}
						tried++
						if got := w.rules.Allowed(c); got != want {
							t.Errorf("%s (%s): allowed %v, want %v", each, c.Destination.Addr(), got, want)
						}
					}
				}
			}
			if tried == 0 {
				t.Error("nothing was tried")
			}
			w.compare()
			if len(w.problems) > 0 {
				t.Errorf("problems: %v", w.problems)
			}
		})
	}
}
