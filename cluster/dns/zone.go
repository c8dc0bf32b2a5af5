package dns

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

const (
	// schema is the version of the specification that the names follow.
	schema = "1.1.0"
	// ttl is how long clients may keep what they are told, in seconds; versionTTL so for the
	// schema.
	ttl, versionTTL = 5, 28800
)

// zone answers for the names of the cluster's domain, as Kubernetes' specification of DNS for
// Services says, and for the names of the addresses of Services and endpoints.
type zone struct {
	*objects
	domain string         // "cluster.local."
	suffix string         // ".cluster.local."
	nets   []netip.Prefix // of Services
	soa    *dns.SOA
	server string // the name of this server
}

func newZone(o *objects, domain string, nets []netip.Prefix) *zone {
	domain = strings.ToLower(dns.Fqdn(domain))
	z := &zone{objects: o, domain: domain, suffix: "." + domain, nets: nets, server: serviceName + "." + serviceNamespace + ".svc." + domain}
	z.soa = &dns.SOA{
		Hdr: header(domain, dns.TypeSOA), Ns: z.server, Mbox: "hostmaster." + domain,
		Serial: uint32(time.Now().Unix()), Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
	return z
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// answer is what a zone knows of a name.
type answer struct {
	// exists is set for names that have records of any type, or names below them.
	exists  bool
	records []dns.RR
	// extra are the addresses of names in records.
	extra []dns.RR
	// alias is the other name of an ExternalName Service, which was not looked up.
	alias string
	// cut is set if there are more records than were asked for.
	cut bool
}

// question is what a zone is asked.
type question struct {
	name  string // lower case
	owner string // the name as the client wrote it
	kind  uint16
	// limit is how many records fit into the answer at most. A headless Service may have thousands.
	limit int
}

// lookup answers if the name is the zone's.
func (z *zone) lookup(q question) (a answer, ours bool) {
	switch {
	case q.name == z.domain:
		a = z.apex(q)
	case strings.HasSuffix(q.name, z.suffix):
		a = z.below(q, strings.TrimSuffix(q.name, z.suffix))
	default:
		return z.reverse(q)
	}
	if q.kind == dns.TypeSOA && len(a.records) == 0 && q.name == z.domain {
		a.records = []dns.RR{z.soa}
	}
	return a, true
}

func (z *zone) apex(q question) answer {
	a := answer{exists: true}
	if q.kind == dns.TypeNS {
		a.records = []dns.RR{&dns.NS{Hdr: header(q.owner, dns.TypeNS), Ns: z.server}}
		if s := z.objects.service(serviceNamespace, serviceName); s != nil {
			a.extra = clusterAddresses(s, z.server, dns.TypeNone)
		}
	}
	return a
}

// below answers for what is left of a name without the domain.
func (z *zone) below(q question, rest string) answer {
	if strings.Contains(rest, `\`) { // an octet that no object's name has
		return answer{}
	}
	rest, top := cutLast(rest)
	switch {
	case top == "svc" && rest == "", top == "pod" && rest == "":
		return answer{exists: true}
	case top == "svc":
		return z.ofNamespace(q, rest)
	case top == "pod":
		return z.pod(q, rest)
	case top == "dns-version" && rest == "":
		a := answer{exists: true}
		if q.kind == dns.TypeTXT {
			h := header(q.owner, dns.TypeTXT)
			h.Ttl = versionTTL
			a.records = []dns.RR{&dns.TXT{Hdr: h, Txt: []string{schema}}}
		}
		return a
	default:
		return answer{}
	}
}

// cutLast cuts a name before its last label.
func cutLast(name string) (rest, last string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return "", name
	}
	return name[:i], name[i+1:]
}

// ofNamespace answers for NAMESPACE and what is below.
func (z *zone) ofNamespace(q question, rest string) answer {
	rest, namespace := cutLast(rest)
	if rest == "" {
		return answer{exists: z.namespaceExists(namespace)}
	}
	rest, name := cutLast(rest)
	s := z.objects.service(namespace, name)
	switch {
	case s == nil:
		return answer{}
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		return external(q, s, rest)
	case rest == "":
		return z.ofService(q, s)
	}
	rest, last := cutLast(rest)
	switch {
	case strings.HasPrefix(last, "_"):
		return z.ofPort(q, s, rest, last[1:])
	case rest == "":
		return z.ofEndpoint(q, s, last)
	default:
		return answer{}
	}
}

// external answers for an ExternalName Service, which has nothing below.
func external(q question, s *corev1.Service, rest string) answer {
	target := dns.Fqdn(s.Spec.ExternalName)
	if _, ok := dns.IsDomainName(target); rest != "" || !ok {
		return answer{}
	}
	return answer{
		exists: true, alias: target,
		records: []dns.RR{&dns.CNAME{Hdr: header(q.owner, dns.TypeCNAME), Target: target}},
	}
}

// ofService answers for a Service itself. SRV records of all its ports are beyond the
// specification; old clients of StatefulSets look for them here.
func (z *zone) ofService(q question, s *corev1.Service) answer {
	switch {
	case q.kind == dns.TypeSRV:
		return z.ports(q, s, "", "")
	case headless(s):
		return z.addressesOf(q, s, func(endpoint) bool { return true })
	default:
		return answer{exists: true, records: clusterAddresses(s, q.owner, q.kind)}
	}
}

// ofPort answers for _PORT._PROTOCOL, and for _PROTOCOL, which only has names below.
func (z *zone) ofPort(q question, s *corev1.Service, port, protocol string) answer {
	name, ok := strings.CutPrefix(port, "_")
	if protocol == "" || port != "" && (!ok || name == "" || strings.Contains(name, ".")) {
		return answer{}
	}
	a := z.ports(q, s, name, protocol)
	if q.kind != dns.TypeSRV || port == "" {
		a = answer{exists: a.exists}
	}
	return a
}

// ports returns the SRV records of a Service: of the port of this name, or of all; empty names are
// those of ports without one, which only the Service's own name has records of. What is at the
// other end of a headless Service's port, an endpoint's slice says.
func (z *zone) ports(q question, s *corev1.Service, name, protocol string) (a answer) {
	wanted := func(portName string, proto corev1.Protocol) bool {
		if protocol == "" {
			return true
		}
		return portName != "" && (name == "" || portName == name) && strings.EqualFold(string(proto), protocol)
	}
	base := s.Name + "." + s.Namespace + ".svc." + z.domain
	if !headless(s) {
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; wanted(p.Name, p.Protocol) {
				a.records = append(a.records, srv(q.owner, uint16(p.Port), base))
			}
		}
		if len(a.records) > 0 {
			a.exists, a.extra = true, clusterAddresses(s, base, dns.TypeNone)
		}
		weigh(a.records)
		a.exists = a.exists || protocol == ""
		return a
	}
	type target struct {
		port uint16
		name string
	}
	seen := map[target]bool{}
	for e := range z.endpoints(s) {
		a.exists = a.exists || protocol == ""
		host := label(e) + "." + base
		used := false
		for _, p := range e.slice.Ports {
			if p.Port == nil || !wanted(orEmpty(p.Name), orTCP(p.Protocol)) {
				continue
			}
			a.exists, used = true, true
			t := target{uint16(*p.Port), host}
			if seen[t] {
				continue
			}
			if len(a.records) >= q.limit {
				a.cut = true
				weigh(a.records)
				return a
			}
			seen[t] = true
			a.records = append(a.records, srv(q.owner, t.port, host))
		}
		if rr := address(host, e.address(), dns.TypeNone); used && rr != nil {
			a.extra = append(a.extra, rr)
		}
	}
	weigh(a.records)
	return a
}

func orEmpty(name *string) string {
	if name == nil {
		return ""
	}
	return *name
}

func orTCP(p *corev1.Protocol) corev1.Protocol {
	if p == nil {
		return corev1.ProtocolTCP
	}
	return *p
}

func srv(owner string, port uint16, target string) dns.RR {
	return &dns.SRV{Hdr: header(owner, dns.TypeSRV), Port: port, Target: target}
}

// weigh gives each record the same share.
func weigh(records []dns.RR) {
	for _, rr := range records {
		rr.(*dns.SRV).Weight = uint16(max(100/len(records), 1))
	}
}

// ofEndpoint answers for an endpoint's own name.
func (z *zone) ofEndpoint(q question, s *corev1.Service, name string) answer {
	addr := addressIn(name)
	return z.addressesOf(q, s, func(e endpoint) bool {
		if h := hostnameOf(e.Endpoint); h != "" {
			return h == name
		}
		return addr.IsValid() && e.address() == addr.String()
	})
}

// addressesOf returns the addresses of some endpoints, each once, in an order that changes.
func (z *zone) addressesOf(q question, s *corev1.Service, wanted func(endpoint) bool) (a answer) {
	var all []string
	for e := range z.endpoints(s) {
		if !wanted(e) {
			continue
		}
		a.exists = true
		if kindOf(e.slice.AddressType == "IPv6") == q.kind {
			all = append(all, e.address())
		}
	}
	slices.Sort(all) // an endpoint may be in two slices for a moment
	all = slices.Compact(all)
	if len(all) == 0 {
		return a
	}
	start := rand.IntN(len(all))
	a.cut = len(all) > q.limit
	for i := range min(len(all), q.limit) {
		if rr := address(q.owner, all[(start+i)%len(all)], q.kind); rr != nil {
			a.records = append(a.records, rr)
		}
	}
	return a
}

func kindOf(ipv6 bool) uint16 {
	if ipv6 {
		return dns.TypeAAAA
	}
	return dns.TypeA
}

// clusterAddresses returns the records of one kind of a Service's cluster addresses; TypeNone is
// both.
func clusterAddresses(s *corev1.Service, owner string, kind uint16) (records []dns.RR) {
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	for _, ip := range all {
		if rr := address(owner, ip, kind); rr != nil {
			records = append(records, rr)
		}
	}
	return records
}

// address returns the record of an address, nil if it is of another kind; TypeNone is both.
func address(owner, ip string, kind uint16) dns.RR {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil
	}
	return addressRecord(owner, addr.Unmap(), kind)
}

func addressRecord(owner string, addr netip.Addr, kind uint16) dns.RR {
	own := kindOf(addr.Is6())
	switch {
	case kind != own && kind != dns.TypeNone:
		return nil
	case own == dns.TypeA:
		return &dns.A{Hdr: header(owner, own), A: addr.AsSlice()}
	default:
		return &dns.AAAA{Hdr: header(owner, own), AAAA: addr.AsSlice()}
	}
}

// pod answers for ADDRESS.NAMESPACE. As the specification says, any address has a record, with
// dashes for its dots or colons.
func (z *zone) pod(q question, rest string) answer {
	rest, namespace := cutLast(rest)
	if !z.namespaceExists(namespace) || strings.Contains(rest, ".") {
		return answer{}
	}
	if rest == "" {
		return answer{exists: true}
	}
	addr := addressIn(rest)
	if !addr.IsValid() {
		return answer{}
	}
	a := answer{exists: true}
	if rr := addressRecord(q.owner, addr, q.kind); rr != nil {
		a.records = []dns.RR{rr}
	}
	return a
}

// dashes makes a label of an address.
var dashes = strings.NewReplacer(".", "-", ":", "-")

// label is the name of an endpoint below its Service's.
func label(e endpoint) string {
	if h := hostnameOf(e.Endpoint); h != "" {
		return h
	}
	return dashes.Replace(e.address())
}

// addressIn returns the address that a label is made of, the zero Addr for none.
func addressIn(name string) netip.Addr {
	if strings.Count(name, "-") == 3 {
		if addr, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ".")); err == nil {
			return addr
		}
	}
	addr, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}
	}
	return addr
}
