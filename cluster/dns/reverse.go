package dns

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

const (
	reverse4 = ".in-addr.arpa."
	reverse6 = ".ip6.arpa."
)

// reverse answers for the name of an address of a Service or of an endpoint that has a name.
// Addresses of others are not ours, but those that Services could have are asked of no one else.
func (z *zone) reverse(q question) (a answer, ours bool) {
	addr := reversed(q.name)
	if !addr.IsValid() {
		return answer{}, false
	}
	var names []string
	if s := z.serviceAt(addr); s != nil && (s.Spec.ClusterIP == addr.String() || slices.Contains(s.Spec.ClusterIPs, addr.String())) {
		names = []string{s.Name + "." + s.Namespace + ".svc." + z.domain}
	} else {
		names = z.endpointNames(addr)
	}
	if len(names) == 0 {
		return answer{}, slices.ContainsFunc(z.nets, func(n netip.Prefix) bool { return n.Contains(addr) })
	}
	a.exists = true
	if q.kind != dns.TypePTR {
		return a, true
	}
	a.cut = len(names) > q.limit
	for _, name := range names[:min(len(names), q.limit)] {
		a.records = append(a.records, &dns.PTR{Hdr: header(q.owner, dns.TypePTR), Ptr: name})
	}
	return a, true
}

// endpointNames returns the names of the endpoints at an address: those that they were given, or if
// there are none those made of the address.
func (z *zone) endpointNames(addr netip.Addr) []string {
	var given, made []string
	for e, s := range z.endpointsAt(addr) {
		name := label(e) + "." + s.Name + "." + s.Namespace + ".svc." + z.domain
		if hostnameOf(e.Endpoint) != "" {
			given = append(given, name)
		} else {
			made = append(made, name)
		}
	}
	if len(given) == 0 {
		given = made
	}
	slices.Sort(given)
	return slices.Compact(given)
}

// reversed returns the address that a name below in-addr.arpa or ip6.arpa is of, the zero Addr for
// none.
func reversed(name string) netip.Addr {
	if labels, ok := strings.CutSuffix(name, reverse4); ok {
		parts := strings.Split(labels, ".")
		slices.Reverse(parts)
		addr, err := netip.ParseAddr(strings.Join(parts, "."))
		if err != nil || !addr.Is4() {
			return netip.Addr{}
		}
		return addr
	}
	labels, ok := strings.CutSuffix(name, reverse6)
	if !ok || len(labels) != 63 { // 32 nibbles
		return netip.Addr{}
	}
	var digits [32]byte
	for i := range digits {
		digits[len(digits)-1-i] = labels[2*i]
		if i > 0 && labels[2*i-1] != '.' {
			return netip.Addr{}
		}
	}
	var addr [16]byte
	if _, err := hex.Decode(addr[:], digits[:]); err != nil {
		return netip.Addr{}
	}
	return netip.AddrFrom16(addr)
}
