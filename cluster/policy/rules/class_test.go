package rules

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// naive decides by the Class itself.
func naive(c *Class, ident uint32, peer netip.Addr, protocol byte, port uint16) bool {
	allows := func(p PortRange) bool {
		others := p.Protocol == Others && protocol != tcp && protocol != udp && protocol != sctp
		return p.Protocol == 0 || others || p.Protocol == protocol && p.First <= port && port <= p.Last
	}
	for _, p := range c.Peers {
		if p.Ident == ident && allows(p.Ports) {
			return true
		}
	}
	for _, b := range c.Blocks {
		if slices.Contains(c.Decided, ident) {
			return false
		}
		if b.First.Is4() == peer.Is4() && !peer.Less(b.First) && !b.Last.Less(peer) && allows(b.Ports) {
			return true
		}
	}
	return false
}

func randomPorts(r *rand.Rand) PortRange {
	p := PortRange{Protocol: []byte{0, tcp, udp, sctp, Others}[r.IntN(5)]}
	switch p.Protocol {
	case 0:
		return p
	case Others:
		return OtherProtocols
	}
	p.First = uint16(r.IntN(12))
	p.Last = p.First + uint16(r.IntN(3)*r.IntN(5))
	if r.IntN(8) == 0 {
		p.First, p.Last = 0, 65535
	}
	return p
}

// randomClass has few idents, ports and addresses, so that they overlap.
func randomClass(r *rand.Rand, idents int, address func() netip.Addr) *Class {
	c := &Class{}
	for range r.IntN(5) {
		c.Peers = append(c.Peers, Peer{uint32(r.IntN(idents) + 1), randomPorts(r)})
	}
	if r.IntN(2) == 0 {
		for range r.IntN(idents + 1) {
			c.Decided = append(c.Decided, uint32(r.IntN(idents)+1))
		}
	}
	for range r.IntN(6) {
		first, last := address(), address()
		if first.Is4() != last.Is4() {
			last = first
		}
		if last.Less(first) {
			first, last = last, first
		}
		c.Blocks = append(c.Blocks, Block{first, last, randomPorts(r)})
	}
	return c
}

// The form without overlaps means the same, and has none.
func TestClassMeansTheSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	address := func() netip.Addr {
		if r.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{255, 255, 255, byte(244 + r.IntN(12))})
		}
		b := [16]byte{0xff}
		for i := range b {
			b[i] = 0xff
		}
		b[15] = byte(244 + r.IntN(12))
		return netip.AddrFrom16(b)
	}
	allowed := 0
	for range 2000 {
		c := randomClass(r, 3, address)
		form := newClass(c)
		for range 50 {
			ident, peer, protocol, port := uint32(r.IntN(5)), address(), []byte{1, tcp, udp, sctp}[r.IntN(4)], uint16(r.IntN(20))
			want := naive(c, ident, peer, protocol, port)
			if want {
				allowed++
			}
			if got := form.allows(ident, peer, protocol, port); got != want {
				t.Fatalf("%+v: ident %d at %s, protocol %d, port %d: %v, want %v", c, ident, peer, protocol, port, got, want)
			}
		}
		for _, of := range form.blocks {
			for _, intervals := range of {
				for i, each := range intervals {
					if each.last.Less(each.first) || i > 0 && !intervals[i-1].last.Less(each.first) || len(each.ports) == 0 {
						t.Fatalf("%+v: intervals %v", c, intervals)
					}
					for j, s := range each.ports {
						if s.last < s.first || j > 0 && s.first <= each.ports[j-1].last {
							t.Fatalf("%+v: ports %v", c, each.ports)
						}
					}
				}
			}
		}
	}
	if allowed < 1000 || allowed > 99000 {
		t.Errorf("%d of 100,000 are allowed, so the test shows little", allowed)
	}
}

func TestBadChangesAreRefused(t *testing.T) {
	a, b, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	class := func(c Class) Change {
		return Change{Classes: [2]map[uint32]*Class{{1: &c}}}
	}
	for name, bad := range map[string]Change{
		"ident too high":          {Idents: map[netip.Addr]uint32{a: MaxIdent + 1}},
		"no address":              {Idents: map[netip.Addr]uint32{{}: 1}},
		"IPv4 in IPv6":            {Pods: map[netip.Addr]*Pod{netip.MustParseAddr("::ffff:10.0.0.1"): {}}},
		"zone":                    {Pods: map[netip.Addr]*Pod{netip.MustParseAddr("fe80::1%eth0"): {}}},
		"class of a pod too high": {Pods: map[netip.Addr]*Pod{a: {Egress: MaxClass + 1}}},
		"class 0":                 {Classes: [2]map[uint32]*Class{nil, {0: {}}}},
		"class too high":          {Classes: [2]map[uint32]*Class{nil, {MaxClass + 1: {}}}},
		"peer without ident":      class(Class{Peers: []Peer{{0, PortRange{}}}}),
		"peer's ident too high":   class(Class{Peers: []Peer{{MaxIdent + 1, PortRange{}}}}),
		"two families":            class(Class{Blocks: []Block{{a, six, PortRange{}}}}),
		"backwards":               class(Class{Blocks: []Block{{b, a, PortRange{}}}}),
		"ports backwards":         class(Class{Blocks: []Block{{a, b, PortRange{tcp, 2, 1}}}}),
		"no decided ident":        class(Class{Decided: []uint32{0}}),
		"decided ident too high":  class(Class{Decided: []uint32{MaxIdent + 1}}),
		"ports of others":         class(Class{Peers: []Peer{{1, PortRange{Others, 1, 2}}}}),
		"protocol without ports":  class(Class{Peers: []Peer{{1, PortRange{1, 0, 0}}}}),
	} {
		s := NewState(nil)
		if err := s.Apply(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if len(s.idents)+len(s.pods)+len(s.classes[0])+len(s.classes[1]) > 0 {
			t.Errorf("%s: left %+v", name, s)
		}
	}
	// ::/80, whose end looks like an IPv4 address in IPv6.
	block := Block{netip.IPv6Unspecified(), netip.MustParseAddr("::ffff:ffff:ffff"), PortRange{}}
	good := Change{
		Idents: map[netip.Addr]uint32{a: MaxIdent}, Pods: map[netip.Addr]*Pod{b: {MaxClass, 1}},
		Classes: [2]map[uint32]*Class{{1: {Blocks: []Block{block}}}},
	}
	if err := NewState(nil).Apply(good); err != nil {
		t.Error(err)
	}
}
