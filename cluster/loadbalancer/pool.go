package loadbalancer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Pool is a set of addresses for Services. The zero value has none. Those of IPv4 that end in 0 or
// 255 are not in it: they are a network's own or its broadcast's, and some devices drop packets to
// all of them.
type Pool struct{ ranges []addressRange }

// addressRange is first to last, both included, of one family.
type addressRange struct{ first, last netip.Addr }

func (r addressRange) String() string { return r.first.String() + "-" + r.last.String() }

// ParsePool reads ranges as users write them: 192.168.1.240/28, 192.168.1.240-192.168.1.250 or one
// address. They must not overlap.
func ParsePool(texts []string) (Pool, error) {
	var p Pool
	for _, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return Pool{}, err
		}
		for _, other := range p.ranges {
			if r.first.Compare(other.last) <= 0 && other.first.Compare(r.last) <= 0 {
				return Pool{}, fmt.Errorf("%q overlaps %s: name each address once", text, other)
			}
		}
		p.ranges = append(p.ranges, r)
	}
	return p, nil
}

func parseRange(text string) (addressRange, error) {
	wrong := fmt.Errorf("%q is no range of addresses, such as 192.168.1.240/28 or 192.168.1.240-192.168.1.250", text)
	var r addressRange
	if network, err := netip.ParsePrefix(text); err == nil {
		if network != network.Masked() {
			return r, fmt.Errorf("%q is an address in a network: %s is the network, and %s the address alone", text, network.Masked(),
				network.Addr())
		}
		r = addressRange{network.Addr(), lastOf(network)}
	} else {
		from, to, ranged := strings.Cut(text, "-")
		if r.first, err = netip.ParseAddr(strings.TrimSpace(from)); err != nil {
			return r, wrong
		}
		if r.last = r.first; ranged {
			if r.last, err = netip.ParseAddr(strings.TrimSpace(to)); err != nil {
				return r, wrong
			}
		}
	}
	switch {
	case r.first.Zone() != "" || r.last.Zone() != "" || r.first.Is4In6() || r.last.Is4In6() || r.first.Is4() != r.last.Is4():
		return r, wrong
	case r.last.Less(r.first):
		return r, fmt.Errorf("%q ends before it starts: write %s-%s", text, r.last, r.first)
	}
	for _, special := range notForServices {
		if r.overlaps(special) {
			return r, fmt.Errorf("%q has addresses of %s, which no other machine can reach", text, special)
		}
	}
	return r, nil
}

// notForServices are loopback, link-local, multicast, unspecified and reserved addresses.
var notForServices = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

// lastOf is the last address of a network.
func lastOf(network netip.Prefix) netip.Addr {
	bytes := network.Addr().AsSlice()
	for bit := network.Bits(); bit < network.Addr().BitLen(); bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// Empty says whether there is no range at all.
func (p Pool) Empty() bool { return len(p.ranges) == 0 }

// Contains says whether a Service can have an address.
func (p Pool) Contains(a netip.Addr) bool {
	return given(a) && slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.contains(a) })
}

func (r addressRange) contains(a netip.Addr) bool {
	return a.Is4() == r.first.Is4() && r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0
}

// given says whether an address is one that Services get.
func given(a netip.Addr) bool {
	if !a.Is4() {
		return true
	}
	end := a.As4()[3]
	return end != 0 && end != 255
}

// Has says whether the pool has addresses of IPv6, or of IPv4.
func (p Pool) Has(ipv6 bool) bool { return p.Next(ipv6, netip.Addr{}).IsValid() }

// Next returns the pool's first address of a family that comes after another, or the first of all
// after netip.Addr{}. The zero Addr means that there is none.
func (p Pool) Next(ipv6 bool, after netip.Addr) netip.Addr {
	ranges := p.ranges
	if after.IsValid() { // it is in one of them
		i := slices.IndexFunc(ranges, func(r addressRange) bool { return r.contains(after) })
		if i < 0 {
			return netip.Addr{}
		}
		if a := ranges[i].next(after.Next()); a.IsValid() {
			return a
		}
		ranges = ranges[i+1:]
	}
	for _, r := range ranges {
		if r.first.Is6() != ipv6 {
			continue
		}
		if a := r.next(r.first); a.IsValid() {
			return a
		}
	}
	return netip.Addr{}
}

// next is the first address of the range, from a on, that Services get.
func (r addressRange) next(a netip.Addr) netip.Addr {
	for a.IsValid() && r.contains(a) {
		if given(a) {
			return a
		}
		a = a.Next()
	}
	return netip.Addr{}
}

// Overlaps says whether the pool has addresses of a network.
func (p Pool) Overlaps(network netip.Prefix) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool { return r.overlaps(network.Masked()) })
}

// covers says whether one of the pool's ranges has all of a network.
func (p Pool) covers(network netip.Prefix) bool {
	return slices.ContainsFunc(p.ranges, func(r addressRange) bool {
		return r.contains(network.Masked().Addr()) && r.contains(lastOf(network.Masked()))
	})
}

func (r addressRange) overlaps(network netip.Prefix) bool {
	return network.Addr().Is4() == r.first.Is4() && r.first.Compare(lastOf(network)) <= 0 && network.Addr().Compare(r.last) <= 0
}

func (p Pool) String() string {
	texts := make([]string, len(p.ranges))
	for i, r := range p.ranges {
		texts[i] = r.String()
	}
	return strings.Join(texts, ", ")
}
