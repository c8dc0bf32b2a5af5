package compile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// Review is what came of a ClusterNetworkPolicy.
type Review struct {
	Policy   *policyv1alpha2.ClusterNetworkPolicy
	Problems []Problem // sorted
}

func reviewOf(p *policy) Review {
	r := Review{Policy: p.object.(*policyv1alpha2.ClusterNetworkPolicy)}
	byText := func(a, b notice) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.message, b.message))
	}
	all := slices.Collect(maps.Values(p.large))
	for _, problem := range p.problems {
		all = append(all, notice{problem.Reason, problem.Message})
	}
	slices.SortFunc(all, byText)
	for _, n := range slices.Compact(all) {
		r.Problems = append(r.Problems, Problem{p.object, n.reason, n.message})
	}
	return r
}

func (s *State) clusterPolicy(name string) *policy {
	return s.policies[types.NamespacedName{Name: name}]
}

// SetClusterPolicy tells of a ClusterNetworkPolicy that was created or changed. It returns whether
// that matters: each node writes a condition into its status, which does not.
func (s *State) SetClusterPolicy(o *policyv1alpha2.ClusterNetworkPolicy) bool {
	before := s.clusterPolicy(o.Name)
	if before == nil {
		s.count(1)
	}
	replaced := before != nil && before.object.GetUID() != o.UID // deleted and made again between two looks
	p, another := s.policy(o, &o.Spec)
	if another {
		s.mean(p, s.parseCluster(o))
	}
	if another || replaced { // the new object has no status
		s.another(p)
	}
	return another || replaced
}

// ClusterPolicies returns the objects of all ClusterNetworkPolicies.
func (s *State) ClusterPolicies() []*policyv1alpha2.ClusterNetworkPolicy {
	var all []*policyv1alpha2.ClusterNetworkPolicy
	for _, p := range s.policies {
		if o, ok := p.object.(*policyv1alpha2.ClusterNetworkPolicy); ok {
			all = append(all, o)
		}
	}
	return all
}

// another notes that something else is to be said of a policy, if its status can say it.
func (s *State) another(p *policy) {
	if p.tier != networkTier {
		s.reviewed[p.object.GetName()] = true
	}
}

// DeleteClusterPolicy tells that a ClusterNetworkPolicy is gone.
func (s *State) DeleteClusterPolicy(name string) {
	if s.clusterPolicy(name) != nil {
		s.DeletePolicy("", name)
		s.count(-1)
	}
}

// count notes that there are more ClusterNetworkPolicies, or fewer. The first and the last matter
// to all pods' ends, and to pods whose namespaces are not known.
func (s *State) count(more int) {
	was := s.cluster > 0
	if s.cluster += more; s.cluster > 0 == was {
		return
	}
	s.intervals.stale = true
	for _, p := range s.pods {
		s.setEnds(p)
		if !p.namespace.known {
			s.dirty[p] = true
		}
	}
}

var actions = map[policyv1alpha2.ClusterNetworkPolicyRuleAction]action{
	policyv1alpha2.ClusterNetworkPolicyRuleActionAccept: accept,
	policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:   deny,
	policyv1alpha2.ClusterNetworkPolicyRuleActionPass:   pass,
}

// parseCluster finds out what a ClusterNetworkPolicy says. A rule that cannot be enforced fails
// closed, as the API asks for: one that accepts is about nothing then, and others deny everything.
func (s *State) parseCluster(o *policyv1alpha2.ClusterNetworkPolicy) meaning {
	m := meaning{tier: adminTier, priority: o.Spec.Priority, uses: map[use]bool{}}
	r := &clusterReader{reader{State: s, meaning: &m, object: o}}
	if o.Spec.Tier == policyv1alpha2.BaselineTier {
		m.tier = baselineTier
	}
	pods, err := r.subject(&o.Spec.Subject)
	if err != nil {
		r.failSubject(o, pods, err)
		return m
	}
	for d, n := range [2]int{rules.Ingress: len(o.Spec.Ingress), rules.Egress: len(o.Spec.Egress)} {
		if n > 0 {
			m.uses[use{selector: r.selector(pods), kind: subject, direction: rules.Direction(d)}] = true
		}
	}
	for i := range o.Spec.Ingress {
		in := &o.Spec.Ingress[i]
		c := clusterRule{at: fmt.Sprintf("ingress[%d]", i), field: "from", name: in.Name, action: in.Action, protocols: in.Protocols}
		for _, p := range in.From {
			c.peers = append(c.peers, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods})
		}
		r.rule(rules.Ingress, &c)
	}
	for i := range o.Spec.Egress {
		out := &o.Spec.Egress[i]
		r.rule(rules.Egress, &clusterRule{fmt.Sprintf("egress[%d]", i), "to", out.Name, out.Action, out.To, out.Protocols})
	}
	for d, name := range []string{"ingress", "egress"} {
		elements, strict := 0, ""
		for i := range m.rules[d] {
			elements += m.rules[d][i].elements()
			if m.rules[d][i].action != accept {
				strict = ": they deny everything"
			}
		}
		if elements > s.limits.Policy {
			r.problem(ReasonTooLarge, "its %s rules have %d combinations of peers and ports, and at most %d are enforced%s; "+
				"split the policy, or combine networks", name, elements, s.limits.Policy, cmp.Or(strict, ": they accept nothing"))
			if m.rules[d] = nil; strict != "" {
				m.rules[d] = []rule{denyAll("")}
			}
		}
	}
	m.forgetUnused()
	return m
}

// failSubject has a policy whose subject cannot be read deny everything, in a direction in which it
// would do more than accept, for all pods that it may be about.
func (r *clusterReader) failSubject(o *policyv1alpha2.ClusterNetworkPolicy, pods selectorKey, err error) {
	strict := [2]bool{}
	for _, in := range o.Spec.Ingress {
		strict[rules.Ingress] = strict[rules.Ingress] || actions[in.Action] != accept
	}
	for _, out := range o.Spec.Egress {
		strict[rules.Egress] = strict[rules.Egress] || actions[out.Action] != accept
	}
	var denied []string
	for d, name := range []string{"ingress", "egress"} {
		if !strict[d] {
			continue
		}
		denied = append(denied, name)
		r.rules[d] = []rule{denyAll("")}
		r.uses[use{selector: r.selector(pods), kind: subject, direction: rules.Direction(d)}] = true
	}
	if denied == nil {
		r.invalid("subject: %v: the policy accepts nothing", err)
		return
	}
	whose := "all pods"
	if !pods.namespaces.Empty() {
		whose = "all pods of the namespaces " + pods.namespaces.String()
	}
	r.invalid("subject: %v: the policy denies all %s of %s", err, strings.Join(denied, " and "), whose)
}

func denyAll(name string) rule {
	return rule{name: name, action: deny, blocks: slices.Clone(everywhere), ports: []rules.PortRange{allPorts}}
}

// clusterReader reads the rules of a ClusterNetworkPolicy.
type clusterReader struct{ reader }

// clusterRule is one of either direction. The peers of one for ingress have fewer fields.
type clusterRule struct {
	at, field string
	name      string
	action    policyv1alpha2.ClusterNetworkPolicyRuleAction
	peers     []policyv1alpha2.ClusterNetworkPolicyEgressPeer
	protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
}

// rule reads a rule.
func (r *clusterReader) rule(d rules.Direction, c *clusterRule) {
	out := rule{name: cmp.Or(c.name, c.at)}
	var known bool
	if out.action, known = actions[c.action]; !known {
		r.invalid("%s.action: %q is none of Accept, Deny and Pass: the rule denies everything", c.at, c.action)
		r.add(d, denyAll(out.name))
		return
	}
	refused := false
	refuse := func(reason, format string, args ...any) {
		refused = true
		means := "the rule denies everything"
		if out.action == accept {
			means = "the rule accepts nothing"
		}
		r.problem(reason, "%s.%s: %s", c.at, fmt.Sprintf(format, args...), means)
	}
	for i := range c.protocols {
		if err := out.protocol(&c.protocols[i]); err != nil {
			refuse(ReasonInvalid, "protocols[%d]: %v", i, err)
		}
	}
	if len(c.protocols) == 0 {
		out.ports = []rules.PortRange{allPorts}
	}
	out.ports = unite(out.ports)
	slices.SortFunc(out.named, comparePortNames)
	out.named = slices.Compact(out.named)
	if len(c.peers) == 0 {
		refuse(ReasonInvalid, "%s: it has no peers", c.field)
	}
	for i := range c.peers {
		if reason, err := r.peer(&out, &c.peers[i]); err != nil {
			refuse(reason, "%s[%d]: %v", c.field, i, err)
		}
	}
	out.blocks = join(out.blocks)
	if len(out.blocks) > 0 && len(out.named) > 0 {
		refuse(ReasonInvalid, "%s: ports by name are those of pods, and networks have none: give their numbers, or select pods", c.field)
	}
	switch {
	case !refused:
		r.add(d, out)
	case out.action != accept:
		r.add(d, denyAll(out.name))
	}
}

// protocol reads ports. A name is that of a port of any protocol.
func (r *rule) protocol(p *policyv1alpha2.ClusterNetworkPolicyProtocol) error {
	var port *policyv1alpha2.Port
	var protocol corev1.Protocol
	set := 0
	if p.TCP != nil {
		port, protocol = p.TCP.DestinationPort, corev1.ProtocolTCP
		set++
	}
	if p.UDP != nil {
		port, protocol = p.UDP.DestinationPort, corev1.ProtocolUDP
		set++
	}
	if p.SCTP != nil {
		port, protocol = p.SCTP.DestinationPort, corev1.ProtocolSCTP
		set++
	}
	if p.DestinationNamedPort != "" {
		for _, protocol := range portProtocols {
			r.named = append(r.named, portName{p.DestinationNamedPort, protocol})
		}
		set++
	}
	switch {
	case set != 1:
		return fmt.Errorf("it has %d protocols or names of ports that are known here, and needs one", set)
	case protocol == "":
		return nil
	case port == nil:
		r.ports = append(r.ports, rules.PortRange{Protocol: protocols[protocol], Last: 65535})
		return nil
	}
	first, last := port.Number, port.Number
	if port.Range != nil {
		if port.Number != 0 {
			return fmt.Errorf("destinationPort has a number and a range")
		}
		first, last = port.Range.Start, port.Range.End
	}
	if first < 1 || last > 65535 || last < first {
		return fmt.Errorf("ports %d to %d are none from 1 to 65535", first, last)
	}
	r.ports = append(r.ports, rules.PortRange{Protocol: protocols[protocol], First: uint16(first), Last: uint16(last)})
	return nil
}

// subject returns the pods that a policy is about, or may be about if it fails.
func (r *clusterReader) subject(o *policyv1alpha2.ClusterNetworkPolicySubject) (selectorKey, error) {
	if (o.Namespaces != nil) == (o.Pods != nil) {
		return selectorKey{namespaces: labels.Everything(), pods: labels.Everything()},
			fmt.Errorf("it needs namespaces or pods, and has both or neither")
	}
	return clusterSelector(o.Namespaces, o.Pods)
}

// clusterSelector returns pods that a subject or a peer selects. A selector that fails selects
// everything.
func clusterSelector(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) (k selectorKey, err error) {
	k.pods = labels.Everything()
	if pods != nil {
		namespaces = &pods.NamespaceSelector
		if k.pods, err = metav1.LabelSelectorAsSelector(&pods.PodSelector); err != nil {
			k.pods, err = labels.Everything(), fmt.Errorf("pods.podSelector: %w", err)
		}
	}
	var failed error
	if k.namespaces, failed = metav1.LabelSelectorAsSelector(namespaces); failed != nil {
		k.namespaces, err = labels.Everything(), cmp.Or(err, fmt.Errorf("namespaces: %w", failed))
	}
	return k, err
}

// peer reads a peer into a rule.
func (r *clusterReader) peer(out *rule, p *policyv1alpha2.ClusterNetworkPolicyEgressPeer) (reason string, err error) {
	set := 0
	for _, has := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0} {
		if has {
			set++
		}
	}
	switch {
	case set != 1:
		return ReasonInvalid, fmt.Errorf("it has %d kinds of peers that are known here, and needs one", set)
	case p.Nodes != nil:
		return ReasonUnsupported, fmt.Errorf("peers by nodes are not supported: give their networks")
	case len(p.DomainNames) > 0:
		return ReasonUnsupported, fmt.Errorf("peers by domainNames are not supported: give their networks")
	case len(p.Networks) > 0:
		for _, text := range p.Networks {
			b, err := parseCIDR(string(text))
			if err != nil {
				return ReasonInvalid, fmt.Errorf("networks: %w", err)
			}
			out.blocks = append(out.blocks, b)
		}
		return "", nil
	}
	key, err := clusterSelector(p.Namespaces, p.Pods)
	if err != nil {
		return ReasonInvalid, err
	}
	out.peers = append(out.peers, r.selector(key))
	return "", nil
}
