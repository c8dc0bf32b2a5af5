package rules

import (
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// class is a Class in the form that the kernel and Allowed share: no two parts overlap, as the
// kernel's sets of ranges refuse that.
type class struct {
	idents  map[uint32]allowance
	decided map[uint32]bool
	blocks  [2]map[byte][]interval // by index of the family, and by protocol; 0: all
}

// allowance is what an ident may use.
type allowance struct {
	all   bool
	ports map[byte][]span // by protocol
}

// span is a range of ports, inclusive.
type span struct{ first, last uint16 }

// interval is a range of addresses, inclusive, with ports.
type interval struct {
	first, last netip.Addr
	ports       []span
}

func newClass(c *Class) *class {
	out := &class{idents: map[uint32]allowance{}, decided: map[uint32]bool{}}
	for _, ident := range c.Decided {
		out.decided[ident] = true
	}
	for _, p := range c.Peers {
		a := out.idents[p.Ident]
		if p.Ports.Protocol == 0 {
			a.all = true
		} else {
			if a.ports == nil {
				a.ports = map[byte][]span{}
			}
			a.ports[p.Ports.Protocol] = append(a.ports[p.Ports.Protocol], span{p.Ports.First, p.Ports.Last})
		}
		out.idents[p.Ident] = a
	}
	for _, a := range out.idents {
		for protocol, ports := range a.ports {
			a.ports[protocol] = union(ports)
		}
	}
	var blocks [2]map[byte][]Block
	for i := range blocks {
		blocks[i], out.blocks[i] = map[byte][]Block{}, map[byte][]interval{}
	}
	for _, b := range c.Blocks {
		of := blocks[familyOf(b.First).Index]
		of[b.Ports.Protocol] = append(of[b.Ports.Protocol], b)
	}
	for i, of := range blocks {
		for protocol, all := range of {
			out.blocks[i][protocol] = disjoint(all)
		}
	}
	return out
}

// union is the same ports in ascending spans that do not overlap. Those that touch stay apart:
// single ports are cheaper than ranges.
func union(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return int(a.first) - int(b.first) })
	var out []span
	for _, s := range spans {
		if n := len(out) - 1; n >= 0 && s.first <= out[n].last {
			out[n].last = max(out[n].last, s.last)
		} else {
			out = append(out, s)
		}
	}
	return out
}

// disjoint is the same as blocks of one family and protocol, in ascending intervals that do not
// overlap. Blocks that are networks nest at most as deep as an address has bits, so there are few
// more intervals than blocks.
func disjoint(blocks []Block) []interval {
	slices.SortFunc(blocks, func(a, b Block) int { return a.First.Compare(b.First) })
	var edges []netip.Addr // where something starts, or has just ended
	for _, b := range blocks {
		edges = append(edges, b.First)
		if after := b.Last.Next(); after.IsValid() {
			edges = append(edges, after)
		}
	}
	slices.SortFunc(edges, netip.Addr.Compare)
	edges = slices.Compact(edges)
	var out []interval
	var active []Block
	for i, first := range edges {
		active = slices.DeleteFunc(active, func(b Block) bool { return b.Last.Less(first) })
		for len(blocks) > 0 && blocks[0].First == first {
			active, blocks = append(active, blocks[0]), blocks[1:]
		}
		if len(active) == 0 {
			continue
		}
		last := active[0].Last // of all that are active, if there is no edge above
		if i+1 < len(edges) {
			last = edges[i+1].Prev()
		}
		ports := make([]span, len(active))
		for i, b := range active {
			ports[i] = span{b.Ports.First, b.Ports.Last}
			if b.Ports.Protocol == 0 {
				ports[i] = span{0, math.MaxUint16}
			}
		}
		ports = union(ports)
		if n := len(out) - 1; n >= 0 && out[n].last.Next() == first && slices.Equal(out[n].ports, ports) {
			out[n].last = last
		} else {
			out = append(out, interval{first, last, ports})
		}
	}
	return out
}

// allows reports whether the class allows what a peer with this ident and address sends or
// receives.
func (c *class) allows(ident uint32, peer netip.Addr, protocol byte, port uint16) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
	default:
		protocol, port = Others, 0
	}
	a := c.idents[ident]
	if a.all || contains(a.ports[protocol], port) {
		return true
	}
	if c.decided[ident] {
		return false
	}
	for p, intervals := range c.blocks[familyOf(peer).Index] {
		if p != 0 && p != protocol {
			continue
		}
		i, exact := slices.BinarySearchFunc(intervals, peer, func(i interval, a netip.Addr) int { return i.first.Compare(a) })
		if !exact {
			i--
		}
		if i >= 0 && !intervals[i].last.Less(peer) && (p == 0 || contains(intervals[i].ports, port)) {
			return true
		}
	}
	return false
}

func contains(spans []span, port uint16) bool {
	return slices.ContainsFunc(spans, func(s span) bool { return s.first <= port && port <= s.last })
}
