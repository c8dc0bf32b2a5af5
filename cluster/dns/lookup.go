package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// Lookup returns the addresses that a name of the cluster has, by what Run answers from. It returns
// false for names that are not the cluster's. alias is the other name of an ExternalName Service.
func (s *Server) Lookup(name string) (addresses []netip.Addr, alias string, ours bool) {
	z := newZone(s.objects, s.opts.Domain, s.opts.ServiceNets)
	name = strings.ToLower(dns.Fqdn(name))
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		const most = 100 // a headless Service may have thousands
		a, known := z.lookup(question{name: name, owner: name, kind: kind, limit: most})
		if !known {
			return nil, "", false
		}
		for _, rr := range a.records {
			switch rr := rr.(type) {
			case *dns.A:
				addr, _ := netip.AddrFromSlice(rr.A.To4())
				addresses = append(addresses, addr)
			case *dns.AAAA:
				addr, _ := netip.AddrFromSlice(rr.AAAA)
				addresses = append(addresses, addr)
			}
		}
		alias = a.alias
	}
	return addresses, alias, true
}
