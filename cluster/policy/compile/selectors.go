package compile

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// selector selects pods by their namespaces and labels. Policies that say the same share one, which
// exists while a policy has it.
type selector struct {
	id    uint32
	scope *scope
	text  string // of pods
	pods  labels.Selector

	// What policies use it for, by direction: as a peer, or for the pods that they are about.
	peer    [2]map[*policy]bool
	subject [2]map[*policy]bool
	// named are the ports that egress rules name for its pods, with the number of policies that do.
	named  map[portName]int
	idents map[*identity]bool // whose pods it selects, as a peer
}

func (s *selector) isPeer() bool { return len(s.peer[rules.Ingress])+len(s.peer[rules.Egress]) > 0 }

func (s *selector) used() bool {
	return s.isPeer() || len(s.subject[rules.Ingress])+len(s.subject[rules.Egress]) > 0
}

// scope is where selectors look for pods: in one namespace, or in those that a selector of
// namespaces selects.
type scope struct {
	key        string
	selects    labels.Selector // of namespaces; nil for one namespace
	namespaces map[*namespace]bool
	selectors  map[string]*selector // by text
	// Each selector is in one of these, by something that all its pods have.
	byLabel map[label]map[*selector]bool
	byKey   map[string]map[*selector]bool
	others  map[*selector]bool
}

type label struct{ key, value string }

// namespace is one that exists, or that has pods or policies.
type namespace struct {
	name   string
	known  bool // it exists, and its labels are known
	labels labels.Set
	own    *scope // that of selectors of this namespace only; may be nil
	scopes map[*scope]bool
	pods   map[*pod]bool
}

func (s *State) namespace(name string) *namespace {
	n := s.namespaces[name]
	if n == nil {
		n = &namespace{name: name, scopes: map[*scope]bool{}, pods: map[*pod]bool{}}
		s.namespaces[name] = n
	}
	return n
}

// forget forgets a namespace of which nothing is left.
func (s *State) forget(n *namespace) {
	if !n.known && n.own == nil && len(n.pods) == 0 {
		delete(s.namespaces, n.name)
	}
}

// SetNamespace tells of a namespace that was created or changed.
func (s *State) SetNamespace(name string, l map[string]string) {
	n := s.namespace(name)
	if n.known && labels.Equals(n.labels, l) {
		return
	}
	if !n.known {
		s.placed(n)
	}
	n.known, n.labels = true, l
	s.rescope(n)
}

// DeleteNamespace tells that a namespace is gone.
func (s *State) DeleteNamespace(name string) {
	if n := s.namespaces[name]; n != nil {
		s.placed(n)
		n.known, n.labels = false, nil
		s.rescope(n)
		s.forget(n)
	}
}

// placed has the pods of a namespace looked at again that becomes known, or is no longer, if that
// matters to them as such.
func (s *State) placed(n *namespace) {
	if s.cluster > 0 {
		for p := range n.pods {
			s.dirty[p] = true
		}
	}
}

// rescope finds the scopes of a namespace whose labels changed.
func (s *State) rescope(n *namespace) {
	changed := false
	for _, c := range s.scopes {
		if c.selects == nil {
			continue
		}
		if in := c.has(n); in != n.scopes[c] {
			changed = true
			set(n.scopes, c, in)
			set(c.namespaces, n, in)
		}
	}
	if changed {
		for p := range n.pods {
			s.dirty[p] = true
		}
	}
}

// has says whether a scope has a namespace. One whose labels are not known is in none: a selector
// may ask for labels not to be there.
func (c *scope) has(n *namespace) bool { return n.known && c.selects.Matches(n.labels) }

func set[K comparable](m map[K]bool, k K, in bool) {
	if in {
		m[k] = true
	} else {
		delete(m, k)
	}
}

// selectorKey names a selector: the pods with some labels of one namespace or, if that is "", of
// those selected.
type selectorKey struct {
	namespace  string
	namespaces labels.Selector
	pods       labels.Selector
}

// selector returns the selector of a key, which the caller uses or drops.
func (s *State) selector(k selectorKey) *selector {
	key := "/" + k.namespace // no selector's text begins so
	if k.namespace == "" {
		key = k.namespaces.String()
	}
	c := s.scopes[key]
	if c == nil {
		c = &scope{
			key: key, namespaces: map[*namespace]bool{}, selectors: map[string]*selector{}, others: map[*selector]bool{},
			byLabel: map[label]map[*selector]bool{}, byKey: map[string]map[*selector]bool{},
		}
		s.scopes[key] = c
		if k.namespace != "" {
			n := s.namespace(k.namespace)
			n.own, c.namespaces[n] = c, true
		} else {
			c.selects = k.namespaces
			for _, n := range s.namespaces {
				if c.has(n) {
					n.scopes[c], c.namespaces[n] = true, true
				}
			}
		}
	}
	text := k.pods.String()
	sel := c.selectors[text]
	if sel == nil {
		s.lastSelector++
		sel = &selector{
			id: s.lastSelector, scope: c, text: text, pods: k.pods, named: map[portName]int{},
			idents: map[*identity]bool{}, peer: [2]map[*policy]bool{{}, {}}, subject: [2]map[*policy]bool{{}, {}},
		}
		c.selectors[text] = sel
		c.index(sel, true)
	}
	return sel
}

// drop forgets a selector that no policy uses, and its scope if that has no other.
func (s *State) drop(sel *selector) {
	c := sel.scope
	if sel.used() || c.selectors[sel.text] != sel {
		return
	}
	c.index(sel, false)
	delete(c.selectors, sel.text)
	if len(c.selectors) > 0 {
		return
	}
	delete(s.scopes, c.key)
	for n := range c.namespaces {
		if delete(n.scopes, c); n.own == c {
			n.own = nil
			s.forget(n)
		}
	}
}

// index puts a selector where pods that it may select find it, or removes it.
func (c *scope) index(sel *selector, in bool) {
	requirements, _ := sel.pods.Requirements()
	var best []string
	var key string
	for i := range requirements {
		r := &requirements[i]
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			if values := r.ValuesUnsorted(); best == nil || len(values) < len(best) {
				best, key = values, r.Key()
			}
		case selection.Exists:
			if key == "" {
				key = r.Key()
			}
		}
	}
	switch {
	case best != nil:
		for _, value := range best {
			setIn(c.byLabel, label{key, value}, sel, in)
		}
	case key != "":
		setIn(c.byKey, key, sel, in)
	default:
		set(c.others, sel, in)
	}
}

func setIn[K comparable](m map[K]map[*selector]bool, k K, sel *selector, in bool) {
	if m[k] == nil {
		m[k] = map[*selector]bool{}
	}
	if set(m[k], sel, in); len(m[k]) == 0 {
		delete(m, k)
	}
}

// selecting calls f with the selectors of a pod. Its cost depends on the pod's labels and on the
// selectors that share one with it, not on how many policies there are.
func (s *State) selecting(p *pod, f func(*selector)) {
	of := labels.Set(p.object.Labels)
	try := func(candidates map[*selector]bool) {
		for sel := range candidates {
			if sel.pods.Matches(of) {
				f(sel)
			}
		}
	}
	look := func(c *scope) {
		try(c.others)
		for key, value := range of {
			try(c.byLabel[label{key, value}])
			try(c.byKey[key])
		}
	}
	if p.namespace.own != nil {
		look(p.namespace.own)
	}
	for c := range p.namespace.scopes {
		look(c)
	}
}

// touch has the pods that a selector selects looked at again.
func (s *State) touch(sel *selector) {
	for n := range sel.scope.namespaces {
		for p := range n.pods {
			if sel.pods.Matches(labels.Set(p.object.Labels)) {
				s.dirty[p] = true
			}
		}
	}
}
