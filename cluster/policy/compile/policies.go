package compile

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// policy is a NetworkPolicy or a ClusterNetworkPolicy.
type policy struct {
	id     uint32
	object Object
	spec   any // of object
	meaning
	classes [2]map[*class]bool
	told    map[notice]bool   // of this meaning
	large   map[*class]notice // that it is too large for
}

// Object is a NetworkPolicy or a ClusterNetworkPolicy.
type Object interface {
	metav1.Object
	runtime.Object
}

// meaning is what a policy says.
type meaning struct {
	tier     tier
	priority int32 // in its tier; the lowest counts first
	rules    [2][]rule
	named    []portName // in ingress rules, sorted
	uses     map[use]bool
	looked   []*selector // up, and perhaps not used
	problems []Problem
}

// rule is about connections between the pods of a policy and peers, if they are to one of the
// ports. One of a NetworkPolicy allows them.
type rule struct {
	name   string // for people
	action action // of a ClusterNetworkPolicy
	peers  []*selector
	blocks []span // disjoint
	ports  []rules.PortRange
	named  []portName // ports of the pods that connections go to
}

// elements is at least how many the rule makes of each identity that its peers have.
func (r *rule) elements() int { return (len(r.peers) + len(r.blocks)) * (len(r.ports) + len(r.named)) }

// use is what a policy uses a selector for.
type use struct {
	*selector
	kind      usage
	direction rules.Direction
	port      portName // of named
}

type usage int

const (
	subject usage = iota
	peer
	named // a peer's port that has a name
)

// set notes that a policy has the use, or no longer, and returns whether that matters to pods. That
// one more policy has a peer which others have matters to its own classes only.
func (u use) set(p *policy, in bool) (matters bool) {
	switch u.kind {
	case subject:
		set(u.subject[u.direction], p, in)
		return true
	case peer:
		was := u.isPeer()
		set(u.peer[u.direction], p, in)
		return u.isPeer() != was
	case named:
		was := u.named[u.port] > 0
		if in {
			u.named[u.port]++
		} else if u.named[u.port]--; u.named[u.port] == 0 {
			delete(u.named, u.port)
		}
		return u.named[u.port] > 0 != was
	}
	return false
}

// Problem is something that a policy says and that is not done. It allows less than it says then.
type Problem struct {
	Policy Object
	// Reason is an Event's.
	Reason, Message string
}

// Reasons of problems.
const (
	ReasonInvalid     = "InvalidRule"
	ReasonUnsupported = "UnsupportedRule"
	ReasonTooLarge    = "PolicyTooLarge"
)

// notice is the content of a Problem.
type notice struct{ reason, message string }

// SetPolicy tells of a policy that was created or changed. It returns whether that matters: labels
// and annotations do not.
func (s *State) SetPolicy(o *networkingv1.NetworkPolicy) bool {
	p, another := s.policy(o, &o.Spec)
	if another {
		s.mean(p, s.parse(o))
	}
	return another
}

// policy returns the policy of an object, and whether it says something else than before.
func (s *State) policy(o Object, spec any) (p *policy, another bool) {
	name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	p = s.policies[name]
	if p == nil {
		s.lastPolicy++
		p = &policy{id: s.lastPolicy, classes: [2]map[*class]bool{{}, {}}, large: map[*class]notice{}}
		s.policies[name] = p
	}
	another = !equality.Semantic.DeepEqual(p.spec, spec)
	p.object, p.spec = o, spec
	return p, another
}

// DeletePolicy tells that a policy is gone.
func (s *State) DeletePolicy(namespace, name string) {
	n := types.NamespacedName{Namespace: namespace, Name: name}
	if p := s.policies[n]; p != nil {
		s.mean(p, meaning{})
		delete(s.policies, n)
	}
}

// Policies is how many there are, of both kinds.
func (s *State) Policies() int { return len(s.policies) }

// mean gives a policy a new meaning, and looks again at the pods and classes that this may matter
// to.
func (s *State) mean(p *policy, m meaning) {
	changed := map[*selector]bool{}
	for u := range m.uses {
		if !p.uses[u] && u.set(p, true) {
			changed[u.selector] = true
		}
	}
	for u := range p.uses {
		if !m.uses[u] && u.set(p, false) {
			changed[u.selector] = true
		}
	}
	if !slices.Equal(p.named, m.named) {
		for u := range m.uses {
			if u.kind == subject && u.direction == rules.Ingress {
				changed[u.selector] = true
			}
		}
	}
	if s.cluster > 0 && !slices.EqualFunc(p.spans(), m.spans(), slices.Equal[[]span]) {
		s.intervals.stale = true
	}
	p.meaning, p.told = m, map[notice]bool{}
	for sel := range changed {
		s.touch(sel)
		s.drop(sel)
	}
	for _, sel := range m.looked {
		s.drop(sel)
	}
	p.looked = nil
	for _, classes := range p.classes {
		for c := range classes {
			s.stale[c] = true
		}
	}
	s.tell(p, m.problems...)
}

// tell notes problems of a policy that were not told yet.
func (s *State) tell(p *policy, problems ...Problem) {
	for _, problem := range problems {
		if n := (notice{problem.Reason, problem.Message}); !p.told[n] {
			p.told[n] = true
			s.problems = append(s.problems, problem)
		}
	}
}

// parse finds out what a policy says. What it cannot understand allows nothing. The API server
// refuses most of that.
func (s *State) parse(o *networkingv1.NetworkPolicy) meaning {
	m := meaning{tier: networkTier, uses: map[use]bool{}}
	applies := [2]bool{
		rules.Ingress: len(o.Spec.PolicyTypes) == 0 || slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeIngress),
		rules.Egress: len(o.Spec.PolicyTypes) == 0 && len(o.Spec.Egress) > 0 ||
			slices.Contains(o.Spec.PolicyTypes, networkingv1.PolicyTypeEgress),
	}
	r := reader{State: s, meaning: &m, object: o}
	pods, err := metav1.LabelSelectorAsSelector(&o.Spec.PodSelector)
	if err != nil {
		r.invalid("podSelector: %v: all pods of the namespace are isolated", err)
		pods, o = labels.Everything(), &networkingv1.NetworkPolicy{ObjectMeta: o.ObjectMeta}
	}
	for d, applies := range applies {
		if applies {
			sel := r.selector(selectorKey{namespace: o.Namespace, pods: pods})
			m.uses[use{selector: sel, kind: subject, direction: rules.Direction(d)}] = true
		}
	}
	if applies[rules.Ingress] {
		for i, in := range o.Spec.Ingress {
			r.rule(rules.Ingress, fmt.Sprintf("ingress[%d]", i), "from", in.From, in.Ports)
		}
	}
	if applies[rules.Egress] {
		for i, out := range o.Spec.Egress {
			r.rule(rules.Egress, fmt.Sprintf("egress[%d]", i), "to", out.To, out.Ports)
		}
	}
	for d, name := range []string{"ingress", "egress"} {
		elements := 0
		for i := range m.rules[d] {
			elements += m.rules[d][i].elements()
		}
		if elements > s.limits.Policy {
			r.problem(ReasonTooLarge, "its %s rules have %d combinations of peers and ports, and at most %d are enforced: "+
				"they allow nothing; split the policy, or combine ranges", name, elements, s.limits.Policy)
			m.rules[d] = nil
		}
	}
	m.forgetUnused()
	return m
}

// forgetUnused sees to it that rules which are not enforced use nothing.
func (m *meaning) forgetUnused() {
	has := [2]map[*selector]bool{{}, {}}
	m.named = nil
	for d := range m.rules {
		for i := range m.rules[d] {
			r := &m.rules[d][i]
			for _, sel := range r.peers {
				has[d][sel] = true
			}
			if d == int(rules.Ingress) {
				m.named = append(m.named, r.named...)
			}
		}
	}
	slices.SortFunc(m.named, comparePortNames)
	m.named = slices.Compact(m.named)
	for u := range m.uses {
		if u.kind != subject && !has[u.direction][u.selector] {
			delete(m.uses, u)
		}
	}
}

// reader reads the rules of a policy.
type reader struct {
	*State
	*meaning
	object Object
}

// selector returns the selector of a key.
func (r *reader) selector(k selectorKey) *selector {
	sel := r.State.selector(k)
	r.looked = append(r.looked, sel)
	return sel
}

// maxProblems is how many of a policy's problems are reported.
const maxProblems = 10

func (r *reader) problem(reason, format string, args ...any) {
	if len(r.meaning.problems) == maxProblems {
		return
	}
	r.meaning.problems = append(r.meaning.problems, Problem{r.object, reason, fmt.Sprintf(format, args...)})
}

func (r *reader) invalid(format string, args ...any) { r.problem(ReasonInvalid, format, args...) }

// rule reads a rule. Without peers it is about all of the world, without ports about all of them.
func (r *reader) rule(d rules.Direction, at, field string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	out := rule{}
	for i := range ports {
		if err := out.port(&ports[i]); err != nil {
			r.invalid("%s.ports[%d]: %v", at, i, err)
		}
	}
	out.ports = unite(out.ports)
	if len(ports) == 0 {
		out.ports = []rules.PortRange{allPorts}
	}
	slices.SortFunc(out.named, comparePortNames)
	out.named = slices.Compact(out.named)
	for i := range peers {
		where := fmt.Sprintf("%s.%s[%d]", at, field, i)
		sel, blocks, err := r.peer(&peers[i])
		switch {
		case err != nil:
			r.invalid("%s: %v", where, err)
		case sel != nil:
			out.peers = append(out.peers, sel)
		default:
			out.blocks = append(out.blocks, blocks...)
			if d == rules.Egress && len(out.named) > 0 {
				r.invalid("%s: ports by name are those of pods, and an ipBlock has none: give their numbers, or select pods", where)
			}
		}
	}
	if len(peers) == 0 {
		out.blocks = slices.Clone(everywhere)
	}
	out.blocks = join(out.blocks)
	if d == rules.Egress && len(out.named) > 0 {
		if len(peers) == 0 { // all pods have the port
			all := r.selector(selectorKey{namespaces: labels.Everything(), pods: labels.Everything()})
			r.add(d, rule{peers: []*selector{all}, named: out.named})
			out.named = nil
		} else {
			r.add(d, rule{peers: out.peers, ports: out.ports, named: out.named})
			out.peers, out.named = nil, nil
		}
	}
	r.add(d, out)
}

func (r *reader) add(d rules.Direction, out rule) {
	for _, sel := range out.peers {
		r.uses[use{selector: sel, kind: peer, direction: d}] = true
		if d == rules.Egress {
			for _, name := range out.named {
				r.uses[use{selector: sel, kind: named, direction: d, port: name}] = true
			}
		}
	}
	if out.elements() > 0 {
		r.rules[d] = append(r.rules[d], out)
	}
}

func (r *rule) port(p *networkingv1.NetworkPolicyPort) error {
	name := corev1.ProtocolTCP
	if p.Protocol != nil {
		name = *p.Protocol
	}
	protocol, known := protocols[name]
	if !known {
		return fmt.Errorf("protocol %q is none of TCP, UDP and SCTP", name)
	}
	if p.Port == nil {
		if p.EndPort != nil {
			return fmt.Errorf("endPort %d without a port", *p.EndPort)
		}
		r.ports = append(r.ports, rules.PortRange{Protocol: protocol, Last: 65535})
		return nil
	}
	if p.Port.Type == intstr.String {
		if p.EndPort != nil {
			return fmt.Errorf("endPort %d with port %q, which is no number", *p.EndPort, p.Port.StrVal)
		}
		r.named = append(r.named, portName{p.Port.StrVal, protocol})
		return nil
	}
	first, last := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if first < 1 || last > 65535 || last < first {
		return fmt.Errorf("ports %d to %d are none from 1 to 65535", first, last)
	}
	r.ports = append(r.ports, rules.PortRange{Protocol: protocol, First: uint16(first), Last: uint16(last)})
	return nil
}

// peer reads a peer: a selector, or ranges of addresses.
func (r *reader) peer(p *networkingv1.NetworkPolicyPeer) (*selector, []span, error) {
	if p.IPBlock != nil {
		if p.PodSelector != nil || p.NamespaceSelector != nil {
			return nil, nil, fmt.Errorf("ipBlock with a selector")
		}
		whole, err := parseCIDR(p.IPBlock.CIDR)
		if err != nil {
			return nil, nil, fmt.Errorf("ipBlock: %w", err)
		}
		var except []span
		for _, text := range p.IPBlock.Except {
			e, err := parseCIDR(text)
			if err != nil {
				return nil, nil, fmt.Errorf("ipBlock: except: %w", err)
			}
			except = append(except, e)
		}
		return nil, whole.without(except), nil
	}
	key := selectorKey{namespace: r.object.GetNamespace(), pods: labels.Everything()}
	var err error
	if p.NamespaceSelector != nil {
		key.namespace = ""
		if key.namespaces, err = metav1.LabelSelectorAsSelector(p.NamespaceSelector); err != nil {
			return nil, nil, fmt.Errorf("namespaceSelector: %w", err)
		}
	}
	if p.PodSelector != nil {
		if key.pods, err = metav1.LabelSelectorAsSelector(p.PodSelector); err != nil {
			return nil, nil, fmt.Errorf("podSelector: %w", err)
		}
	} else if p.NamespaceSelector == nil {
		return nil, nil, fmt.Errorf("neither a selector nor an ipBlock")
	}
	return r.selector(key), nil, nil
}
