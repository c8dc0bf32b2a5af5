package compile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	netutils "k8s.io/utils/net"

	"github.com/coracle-project/coracle/cluster/policy/rules"
)

// span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

var everywhere = []span{spanOf(netip.MustParsePrefix("0.0.0.0/0")), spanOf(netip.MustParsePrefix("::/0"))}

func spanOf(p netip.Prefix) span {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := range last {
		host := len(last)*8 - p.Bits() - (len(last)-1-i)*8 // how many of the byte's bits are the host's
		last[i] |= byte(1<<min(max(host, 0), 8) - 1)
	}
	a, _ := netip.AddrFromSlice(last)
	return span{p.Addr(), a}
}

// parseCIDR reads a network as the API server does: zeros before a number, and bits of the host,
// are valid in objects that were made before it refused them.
func parseCIDR(text string) (span, error) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return span{}, fmt.Errorf("%q is no network, such as 10.0.0.0/8", text)
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	return spanOf(netip.PrefixFrom(a, bits)), nil
}

// without returns what is left of s after others are taken from it. It sorts these.
func (s span) without(others []span) []span {
	slices.SortFunc(others, func(a, b span) int { return a.first.Compare(b.first) })
	var left []span
	for _, o := range others {
		if o.first.BitLen() != s.first.BitLen() || o.last.Less(s.first) {
			continue
		}
		if s.last.Less(o.first) {
			break
		}
		if s.first.Less(o.first) {
			left = append(left, span{s.first, o.first.Prev()})
		}
		if s.first = o.last.Next(); !s.first.IsValid() || s.last.Less(s.first) { // the family's last address has no next one
			return left
		}
	}
	return append(left, s)
}

// join returns spans that cover the same addresses, sorted, without any that overlap or touch. It
// may change the argument.
func join(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)) })
	joined := spans[:1]
	for _, s := range spans[1:] {
		last := &joined[len(joined)-1]
		next := last.last.Next()
		if s.first.BitLen() == last.first.BitLen() && (!next.IsValid() || s.first.Compare(next) <= 0) {
			if last.last.Less(s.last) {
				last.last = s.last
			}
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// area is a range of addresses with some ports.
type area struct {
	span
	ports rules.PortRange
}

// disjoint returns blocks that cover the same addresses and ports as areas do, sorted, none of
// which overlap: the kernel refuses such. It gives up when that takes more than limit blocks, or
// many times as many steps: areas in areas with different ports can be cut into very many.
func disjoint(areas []area, limit int) (blocks []rules.Block, ok bool) {
	const steps = 64
	budget := limit * steps
	type edge struct {
		at    netip.Addr
		area  int
		begin bool
	}
	edges := make([]edge, 0, 2*len(areas))
	for i, a := range areas {
		edges = append(edges, edge{a.first, i, true})
		if next := a.last.Next(); next.IsValid() {
			edges = append(edges, edge{next, i, false})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) }) // IPv4 before IPv6
	active := map[rules.PortRange]int{}
	var since []rules.PortRange // the ports from start on
	var start netip.Addr
	end := func(last netip.Addr) {
		for _, p := range since {
			blocks = append(blocks, rules.Block{First: start, Last: last, Ports: p})
		}
	}
	for i := 0; i < len(edges); {
		at := edges[i].at
		if start.IsValid() && start.BitLen() != at.BitLen() { // what reaches the end of IPv4 has no edge there
			end(everywhere[0].last)
			since = nil
			clear(active)
		}
		for ; i < len(edges) && edges[i].at == at; i++ {
			p := areas[edges[i].area].ports
			if edges[i].begin {
				active[p]++
			} else if active[p]--; active[p] == 0 {
				delete(active, p)
			}
		}
		if budget -= len(active) + 1; budget < 0 {
			return nil, false
		}
		now := unite(slices.Collect(maps.Keys(active)))
		if slices.Equal(now, since) {
			continue
		}
		if len(since) > 0 {
			end(at.Prev())
		}
		if len(blocks) > limit {
			return nil, false
		}
		start, since = at, now
	}
	if len(since) > 0 {
		end(everywhere[familyOf(start)].last)
	}
	if len(blocks) > limit {
		return nil, false
	}
	return blocks, true
}

// familyOf is an index of everywhere.
func familyOf(a netip.Addr) int {
	if a.Is6() {
		return 1
	}
	return 0
}
