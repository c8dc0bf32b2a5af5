// Package compile translates NetworkPolicies and ClusterNetworkPolicies to what the kernel's rules
// are made of: identities, classes, and what each class may receive or send (package rules). It
// knows the API's objects and no kernel.
//
// Words: an identity is a set of pods, anywhere in the cluster, that the same peers of policies
// select. A class is a set of this node's pods, for one direction, that the same policies are
// about. A rule allows a class to talk with identities, not with pods, so the start of a pod
// changes no rules unless it is the first of its kind.
//
// A State is told of objects as informers are, in any order. Take returns what is different since
// the last time. Selectors are indexed by labels, so that the cost of a pod depends on the policies
// that select it and not on how many there are. A policy that changes costs as much as the pods
// that its selectors find.
//
// What cannot be enforced allows nothing, and is a Problem: NetworkPolicies only ever allow, so
// what is left out isolates.
//
// ClusterNetworkPolicies forbid as well, and the first rule that matches decides. A class that one
// of them is about is decided here, rule by rule, for each identity that its rules select and for
// each range of addresses (tiers.go); what comes of it is again only what is allowed. While there
// are such policies, an identity also says in which of their networks an address is (intervals.go).
package compile

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// Limits bound what policies can have the kernel keep. They count ranges of ports of an identity or
// of a range of addresses. What is beyond them allows nothing.
type Limits struct {
	Policy int // a direction of a policy, each selector counted as one identity
	Class  int // a class
	All    int // all classes
	Ranges int // all classes: ranges of addresses and of ports only
}

// DefaultLimits are some tens of megabytes in the kernel, at most. Ranges in one set cost time as
// the square of their number (Linux 6.18: 0.04 s for 2,000, 1.6 s for 16,000), and others cannot
// change nftables meanwhile.
var DefaultLimits = Limits{Policy: 16 << 10, Class: 64 << 10, All: 256 << 10, Ranges: 32 << 10}

// crowded is the class of pods that get none of their own, and crowdedIdent the ident of identities
// that do. Both have nothing that is allowed.
const (
	crowded      = rules.MaxClass
	crowdedIdent = rules.MaxIdent
)

// ID tells a pod from others, also from one of the same name that was there before.
type ID struct {
	Namespace, Name string
	UID             types.UID
}

// IDOf returns a pod's ID. A static pod and its mirror pod in the API have the same.
func IDOf(p *corev1.Pod) ID {
	id := ID{p.Namespace, p.Name, p.UID}
	if mirrored := p.Annotations[kubetypes.ConfigMirrorAnnotationKey]; mirrored != "" {
		id.UID = types.UID(mirrored)
	}
	return id
}

// pod is one with addresses of its own.
type pod struct {
	object    *corev1.Pod // for its labels and ports
	namespace *namespace
	addresses []netip.Addr
	local     bool
	admitted  bool // none of its packets has passed before its addresses were known
	ends      []*end
	class     [2]*class
}

// end is a pod as a peer, or one of its addresses.
type end struct {
	pod       *pod
	addresses []netip.Addr
	interval  netip.Addr // that of the identity
	identity  *identity
}

type identity = cell[*end, identityData]

// identityData is what the ends of an identity have in common.
type identityData struct {
	peers []*selector // sorted by id
	ports map[portName]uint16
	// interval is the first address of the interval that they are in, while there are
	// ClusterNetworkPolicies; see intervals.
	interval netip.Addr
}

// ident is an end's ident in the kernel.
func (e *end) ident() uint32 {
	switch {
	case e == nil || e.identity == nil:
		return 0
	case e.identity.number == 0:
		return crowdedIdent
	}
	return e.identity.number
}

// end returns the pod's end with an address, nil for none.
func (p *pod) end(a netip.Addr) *end {
	if p != nil {
		for _, e := range p.ends {
			if slices.Contains(e.addresses, a) {
				return e
			}
		}
	}
	return nil
}

// State is the translation of some objects. Its methods are for one goroutine at a time.
type State struct {
	node   string
	limits Limits

	namespaces map[string]*namespace
	scopes     map[string]*scope
	policies   map[types.NamespacedName]*policy
	pods       map[ID]*pod

	lastSelector, lastPolicy uint32
	identities               partition[*end, identityData]
	classes                  [2]partition[*pod, classData]
	addresses                map[netip.Addr]*address
	cluster                  int // how many of the policies are ClusterNetworkPolicies
	intervals                intervals

	// What Take has to look at.
	dirty    map[*pod]bool
	stale    map[*class]bool
	shifted  map[*selector]bool // peers that select other identities
	moved    map[netip.Addr]bool
	problems []Problem
	reviewed map[string]bool // ClusterNetworkPolicies that say something else
	fresh    bool            // nothing was taken since Reset

	// Of the next Take.
	wishedIdents  map[netip.Addr]uint32
	wishedClasses map[netip.Addr]rules.Pod

	sent  [2]map[uint32]*rules.Class
	kept  extent // of all that was sent
	short map[*class]bool
}

// New returns the State of a node.
func New(node string, limits Limits) *State {
	s := &State{
		node: node, limits: limits, namespaces: map[string]*namespace{}, scopes: map[string]*scope{},
		policies: map[types.NamespacedName]*policy{}, pods: map[ID]*pod{}, addresses: map[netip.Addr]*address{},
		dirty: map[*pod]bool{}, stale: map[*class]bool{}, shifted: map[*selector]bool{}, moved: map[netip.Addr]bool{}, fresh: true,
		reviewed: map[string]bool{},
		sent:     [2]map[uint32]*rules.Class{{}, {}}, short: map[*class]bool{},
	}
	s.identities = newPartition[*end, identityData](crowdedIdent - 1)
	s.identities.of = func(e *end) **identity { return &e.identity }
	s.identities.wish = func(e *end) uint32 { return wished(e.addresses, s.wishedIdents) }
	s.identities.begin, s.identities.end = s.beginIdentity, s.endIdentity
	for i := range s.classes {
		d := &s.classes[i]
		*d = newPartition[*pod, classData](crowded - 1)
		d.of = func(p *pod) **class { return &p.class[i] }
		d.wish = func(p *pod) uint32 {
			was := wished(p.addresses, s.wishedClasses)
			return [2]uint32{was.Ingress, was.Egress}[i]
		}
		d.begin, d.end = s.beginClass, s.endClass
	}
	return s
}

// Wish has the next Take give pods the numbers that their addresses have in the kernel, where it
// can: what is there already need not be changed.
func (s *State) Wish(idents map[netip.Addr]uint32, pods map[netip.Addr]rules.Pod) {
	s.wishedIdents, s.wishedClasses = idents, pods
}

// wished is what was wished for addresses.
func wished[T any](addresses []netip.Addr, by map[netip.Addr]T) (wish T) {
	for _, a := range addresses {
		if wish, exists := by[a]; exists {
			return wish
		}
	}
	return wish
}

// Addresses returns the addresses of a pod that its status tells.
func Addresses(p *corev1.Pod) []netip.Addr {
	var all []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Zone() == "" {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// SetPod tells of a pod and its addresses. Pods of the node's own network, those that have ended,
// and those without addresses have no part in policies. A pod that is admitted has sent nothing
// before.
func (s *State) SetPod(id ID, o *corev1.Pod, addresses []netip.Addr, admitted bool) {
	if o.Spec.HostNetwork || podutil.IsPodPhaseTerminal(o.Status.Phase) || len(addresses) == 0 {
		s.DeletePod(id)
		return
	}
	p := s.pods[id]
	if p == nil {
		p = &pod{namespace: s.namespace(o.Namespace)}
		p.namespace.pods[p] = true
		s.pods[id] = p
	}
	local := admitted || o.Spec.NodeName == s.node // the kubelet may know first
	if p.object == nil || p.local != local || !labels.Equals(p.object.Labels, o.Labels) {
		s.dirty[p] = true
		s.move(p.addresses)
	}
	p.object, p.local = o, local
	if admitted && !p.admitted || !slices.Equal(p.addresses, addresses) {
		s.release(p)
		p.addresses, p.admitted = slices.Clone(addresses), admitted
		s.setEnds(p)
		s.claim(p)
	}
}

// setEnds gives a pod an end for all its addresses, or one for each while there are
// ClusterNetworkPolicies.
func (s *State) setEnds(p *pod) {
	n := len(p.addresses)
	if s.cluster == 0 {
		n = min(n, 1)
	}
	for i := range n {
		if i == len(p.ends) {
			p.ends = append(p.ends, &end{pod: p})
		}
		addresses := p.addresses
		if s.cluster > 0 {
			addresses = addresses[i : i+1]
		}
		if e := p.ends[i]; !slices.Equal(e.addresses, addresses) {
			e.addresses = addresses
			s.dirty[p] = true
			s.move(addresses) // also if the identity stays
		}
	}
	for _, e := range p.ends[n:] {
		s.identities.put(e, place[identityData]{})
	}
	p.ends = slices.Delete(p.ends, n, len(p.ends))
}

// Claim says that a pod that is admitted has got its addresses just now: the pod that had them
// before, and may still be known, no longer has them.
func (s *State) Claim(id ID) {
	if p := s.pods[id]; p != nil {
		addresses := p.addresses
		s.release(p)
		p.addresses = addresses
		s.claim(p)
	}
}

// DeletePod tells that a pod is gone.
func (s *State) DeletePod(id ID) {
	p := s.pods[id]
	if p == nil {
		return
	}
	s.release(p)
	s.setEnds(p)
	for d := range s.classes {
		s.classes[d].put(p, place[classData]{})
	}
	delete(s.dirty, p)
	delete(s.pods, id)
	delete(p.namespace.pods, p)
	s.forget(p.namespace)
}

// Isolated says whether policies are about a pod, as of the last Take.
func (s *State) Isolated(id ID) bool {
	p := s.pods[id]
	return p != nil && (p.class[rules.Ingress] != nil || p.class[rules.Egress] != nil)
}

// numbered says whether a class has a number in the kernel.
func (s *State) numbered(d rules.Direction, number uint32) bool {
	holders := s.classes[d].holders
	return holders[number] > 0 || number == crowded && holders[0] > 0
}

// sort finds the identities and classes of the pods that may have others now.
func (s *State) sort() {
	if len(s.dirty) == 0 && !s.intervals.stale {
		return
	}
	peers := make(map[*pod][]*selector, len(s.dirty))
	var classes [2]map[*pod]place[classData]
	for d := range classes {
		classes[d] = map[*pod]place[classData]{}
	}
	for p := range s.dirty {
		var selecting []*selector
		var about [2][]*policy
		s.selecting(p, func(sel *selector) {
			if sel.isPeer() {
				selecting = append(selecting, sel)
			}
			if p.local {
				for d := range about {
					for each := range sel.subject[d] {
						about[d] = append(about[d], each)
					}
				}
			}
		})
		peers[p] = selecting
		for d := range about {
			classes[d][p] = s.classOf(p, rules.Direction(d), about[d])
		}
	}
	clear(s.dirty)
	for d := range classes {
		for _, p := range s.classes[d].assign(classes[d]) {
			s.move(p.addresses)
		}
	}
	for _, p := range s.survey() { // the classes say which networks matter
		if _, exists := peers[p]; !exists {
			peers[p] = p.selecting()
		}
	}
	identities := make(map[*end]place[identityData], len(peers))
	for p, selecting := range peers {
		for _, e := range p.ends {
			identities[e] = s.identityOf(e, selecting)
		}
	}
	for _, e := range s.identities.assign(identities) {
		s.move(e.addresses)
	}
}

// selecting returns the peers that select a pod, as of the last look.
func (p *pod) selecting() []*selector {
	for _, e := range p.ends {
		if e.identity != nil {
			return e.identity.data.peers
		}
	}
	return nil
}

// unplaced says whether a pod's namespace is not known yet, and with it which
// ClusterNetworkPolicies select the pod. Such a pod may do nothing: it may be one that is not to be
// talked with.
func (s *State) unplaced(p *pod) bool { return s.cluster > 0 && !p.namespace.known }

// identityOf returns the identity of an end of a pod that some peers select.
func (s *State) identityOf(e *end, peers []*selector) place[identityData] {
	e.interval = s.intervals.of(e.addresses[0])
	if s.unplaced(e.pod) {
		return place[identityData]{key: "unplaced", number: crowdedIdent}
	}
	if len(peers) == 0 {
		return place[identityData]{}
	}
	p := e.pod
	slices.SortFunc(peers, func(a, b *selector) int { return int(a.id) - int(b.id) })
	var key strings.Builder
	var names []portName
	for _, sel := range peers {
		writeNumber(&key, sel.id)
		for name := range sel.named {
			names = append(names, name)
		}
	}
	data := identityData{peers: peers, interval: e.interval}
	data.ports = writePorts(&key, p, names)
	if data.interval.IsValid() {
		writeNumber(&key, 0)
		key.WriteString("/") // no name of a port
		key.Write(data.interval.AsSlice())
	}
	return place[identityData]{key: key.String(), data: data}
}

func writeNumber(key *strings.Builder, n uint32) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	key.Write(b[:])
}

// writePorts adds to a key which numbers a pod gives to names, and returns them.
func writePorts(key *strings.Builder, p *pod, names []portName) map[portName]uint16 {
	slices.SortFunc(names, comparePortNames)
	var ports map[portName]uint16
	for _, name := range slices.Compact(names) {
		n := namedPort(p.object, name)
		if n == 0 {
			continue
		}
		if ports == nil {
			ports = map[portName]uint16{}
		}
		ports[name] = n
		writeNumber(key, 0) // no selector or policy has it
		key.WriteString(name.name)
		writeNumber(key, uint32(name.protocol)<<16|uint32(n))
	}
	return ports
}

// beginIdentity is called when an identity has new peers that select it.
func (s *State) beginIdentity(i *identity) {
	for _, sel := range i.data.peers {
		sel.idents[i] = true
		s.shifted[sel] = true
	}
}

func (s *State) endIdentity(i *identity) {
	for _, sel := range i.data.peers {
		delete(sel.idents, i)
		s.shifted[sel] = true
	}
}
