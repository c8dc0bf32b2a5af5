package dns

import (
	"encoding/binary"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"strings"

	"github.com/miekg/dns"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

const (
	headerSize  = 12
	responseBit = 0x80 // of the third byte
	// maxQuery is how long a query may be. One question and its options take some hundred bytes.
	maxQuery = 4 << 10
	// payload is how long a datagram may be that a client is sent: what passes any network in one
	// piece (RFC 9715). Clients without EDNS are sent at most 512 bytes.
	payload = 1232
	// maxAliases bounds the ExternalName Services that are followed for a question.
	maxAliases = 8
	// smallestRecord is how much an A record takes, its name compressed.
	smallestRecord = 16
)

// handler makes replies of queries.
type handler struct {
	zone    *zone
	forward *forward.Forwarder
	log     *slog.Logger
}

// sender is who has sent a query.
type sender struct {
	addr netip.Addr
	udp  bool
}

// request is a query that can be answered.
type request struct {
	dns.MsgHdr
	question dns.Question
	name     string // of the question, in lower case
	edns, do bool
	limit    int // bytes of the reply
}

// handle returns the reply to a packet, nil for none. The reply may be in buf. If other servers
// have to be asked, it returns a function that does so instead; it must be called, since it has
// reserved its share of what may be under way.
//
// A packet is from anyone: it may be anything.
func (h *handler) handle(packet []byte, from sender, buf []byte) (reply []byte, ask func() []byte) {
	defer func() {
		if p := recover(); p != nil { // a single query must not end the control plane
			h.log.Error("a DNS query is not answered", "client", from.addr, "panic", p, "stack", string(debug.Stack()))
			reply, ask = nil, nil
		}
	}()
	r, rcode := parse(packet, from)
	if r == nil {
		return refusal(packet, rcode), nil
	}
	if rcode != dns.RcodeSuccess {
		return h.pack(r, failure(rcode), buf), nil
	}
	if r.question.Qtype == dns.TypeANY {
		return h.pack(r, minimal(r), buf), nil
	}
	if h.forward.Returned(forward.Question{Name: r.name, Type: r.question.Qtype}) {
		return h.pack(r, failure(dns.RcodeRefused), buf), nil
	}
	if m := h.resolve(r, h.forward.Cached); m != nil {
		return h.pack(r, m, buf), nil
	}
	release, ok := h.forward.Admit(from.addr)
	if !ok {
		return h.pack(r, failure(dns.RcodeServerFailure), buf), nil
	}
	return nil, func() (reply []byte) {
		defer release()
		defer func() {
			if p := recover(); p != nil {
				h.log.Error("a DNS query is not answered", "client", from.addr, "panic", p, "stack", string(debug.Stack()))
				reply = nil
			}
		}()
		return h.pack(r, h.resolve(r, h.forward.Ask), nil)
	}
}

// parse checks a query. Without a request the reply is only a header: not even that for what is no
// query.
func parse(packet []byte, from sender) (r *request, rcode int) {
	if len(packet) < headerSize || packet[2]&responseBit != 0 {
		return nil, dns.RcodeFormatError
	}
	count := func(section int) int { return int(binary.BigEndian.Uint16(packet[4+2*section:])) }
	if opcode := packet[2] >> 3 & 0xf; opcode != dns.OpcodeQuery {
		return nil, dns.RcodeNotImplemented
	}
	// One question, no records but EDNS and a signature (RFC 9619).
	if len(packet) > maxQuery || count(0) != 1 || count(1) > 0 || count(2) > 0 || count(3) > 2 {
		return nil, dns.RcodeFormatError
	}
	var m dns.Msg
	if m.Unpack(packet) != nil || len(m.Question) != 1 || m.Question[0].Qclass == 0 { // 0 is of a question cut short
		return nil, dns.RcodeFormatError
	}
	r = &request{MsgHdr: m.MsgHdr, question: m.Question[0], name: strings.ToLower(m.Question[0].Name), limit: dns.MaxMsgSize}
	if from.udp {
		r.limit = dns.MinMsgSize
	}
	if rcode := r.extend(m.Extra, from); rcode == dns.RcodeFormatError {
		return nil, rcode
	} else if rcode != dns.RcodeSuccess {
		return r, rcode
	}
	switch kind := r.question.Qtype; {
	case r.question.Qclass != dns.ClassINET:
		return r, dns.RcodeRefused
	case kind == dns.TypeANY:
		return r, dns.RcodeSuccess
	case kind == dns.TypeNone, kind == dns.TypeOPT, kind > 127 && kind < 256: // transfers and others that are no records
		return r, dns.RcodeRefused
	}
	return r, dns.RcodeSuccess
}

// extend takes the query's EDNS record, if there is one, into the request.
func (r *request) extend(extra []dns.RR, from sender) (rcode int) {
	for _, rr := range extra {
		opt, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if r.edns || opt.Hdr.Name != "." {
			return dns.RcodeFormatError
		}
		r.edns, r.do = true, opt.Do()
		if from.udp {
			r.limit = min(max(int(opt.UDPSize()), dns.MinMsgSize), payload)
		}
		if opt.Version() != 0 {
			return dns.RcodeBadVers
		}
	}
	return dns.RcodeSuccess
}

// refusal is a reply of only a header; nil for a packet that asks nothing, such as another's reply.
func refusal(packet []byte, rcode int) []byte {
	if len(packet) < headerSize || packet[2]&responseBit != 0 {
		return nil
	}
	reply := make([]byte, headerSize)
	copy(reply, packet[:2])
	reply[2] = responseBit | packet[2]&0x79 // opcode and RD as they were
	reply[3] = 0x80 | byte(rcode)           // RA
	return reply
}

func failure(rcode int) *dns.Msg { return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: rcode}} }

// minimal answers a question for all records with a single one, so that it amplifies nothing (RFC
// 8482).
func minimal(r *request) *dns.Msg {
	h := header(r.question.Name, dns.TypeHINFO)
	h.Ttl = versionTTL
	return &dns.Msg{Answer: []dns.RR{&dns.HINFO{Hdr: h, Cpu: "RFC8482"}}}
}

// resolve answers a question with the cluster's records and with those of others, for which it
// calls ask. It returns nil if ask does.
func (h *handler) resolve(r *request, ask func(forward.Question) *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	q := question{name: r.name, owner: r.question.Name, kind: r.question.Qtype, limit: r.limit / smallestRecord}
	for hop := range maxAliases {
		a, ours := h.zone.lookup(q)
		if !ours {
			others := ask(forward.Question{Name: q.name, Type: q.kind, DO: r.do, CD: r.CheckingDisabled})
			if others == nil {
				return nil
			}
			return join(m, others, q)
		}
		m.Authoritative = m.Authoritative || hop == 0
		m.Truncated = m.Truncated || a.cut
		m.Answer = append(m.Answer, a.records...)
		if a.alias != "" && q.kind != dns.TypeCNAME {
			q.name, q.owner = strings.ToLower(a.alias), a.alias
			continue
		}
		m.Extra = a.extra
		if !a.exists {
			m.Rcode = dns.RcodeNameError
		}
		if len(a.records) == 0 && !isReverse(q.name) {
			m.Ns = []dns.RR{h.zone.soa}
		}
		return m
	}
	return failure(dns.RcodeServerFailure) // Services that are aliases of each other
}

func isReverse(name string) bool {
	return strings.HasSuffix(name, reverse4) || strings.HasSuffix(name, reverse6)
}

// join adds the answer of other servers to what is known already. Its records have the name as it
// was asked.
func join(m, others *dns.Msg, q question) *dns.Msg {
	for _, rr := range others.Answer {
		if h := rr.Header(); strings.EqualFold(h.Name, q.name) {
			h.Name = q.owner
		}
	}
	m.Rcode, m.Ns, m.Extra = others.Rcode, others.Ns, others.Extra
	m.Truncated = m.Truncated || others.Truncated
	m.AuthenticatedData = others.AuthenticatedData && len(m.Answer) == 0
	m.Answer = append(m.Answer, others.Answer...)
	return m
}

// pack makes a reply of an answer, cut to what the client takes.
func (h *handler) pack(r *request, m *dns.Msg, buf []byte) []byte {
	m.Id, m.Response, m.RecursionAvailable = r.Id, true, true
	m.RecursionDesired, m.CheckingDisabled = r.RecursionDesired, r.CheckingDisabled
	m.AuthenticatedData = m.AuthenticatedData && (r.AuthenticatedData || r.do)
	m.Question = []dns.Question{r.question}
	m.Compress = true
	if r.edns {
		m.SetEdns0(payload, r.do)
	}
	wire, err := m.PackBuffer(buf)
	if err == nil && len(wire) > r.limit {
		if extra := m.Extra; len(extra) > 0 { // clients can do without
			m.Extra = nil
			if r.edns {
				m.SetEdns0(payload, r.do)
			}
		}
		m.Truncate(r.limit)
		wire, err = m.PackBuffer(buf)
	}
	if err != nil || len(wire) > r.limit {
		small := failure(dns.RcodeServerFailure)
		small.Id, small.Response, small.Question = r.Id, true, []dns.Question{r.question}
		if wire, err = small.PackBuffer(buf); err != nil {
			return nil
		}
	}
	return wire
}
