package dns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

// crowd is a headless Service of n endpoints.
func crowd(n int) (s []string) {
	for i := range n {
		s = append(s, fmt.Sprintf("10.244.%d.%d", i>>8, i&255))
	}
	return s
}

// What a client is sent by UDP fits into what it takes, and into one packet whatever it claims to
// take; the whole answer comes by TCP.
func TestRepliesFitClients(t *testing.T) {
	many := headlessService("default", "many", "http")
	h := newHandler(t, forward.Config{}, many, sliceOf(many, 1, crowd(600)...))
	edns := func(size uint16) func(*dns.Msg) { return func(m *dns.Msg) { m.SetEdns0(size, false) } }
	for name, tc := range map[string]struct {
		from   sender
		change []func(*dns.Msg)
		max    int
		whole  bool
	}{
		"without EDNS":          {from: sender{pod, true}, max: 512},
		"EDNS of 1,000 bytes":   {from: sender{pod, true}, max: 1000, change: []func(*dns.Msg){edns(1000)}},
		"EDNS of 65,535 bytes":  {from: sender{pod, true}, max: 1232, change: []func(*dns.Msg){edns(65535)}},
		"EDNS of no byte":       {from: sender{pod, true}, max: 512, change: []func(*dns.Msg){edns(0)}},
		"TCP":                   {from: sender{pod, false}, max: 65535, whole: true},
		"TCP, with a small one": {from: sender{pod, false}, max: 65535, whole: true, change: []func(*dns.Msg){edns(512)}},
	} {
		for _, q := range []struct {
			kind uint16
			name string
		}{{dns.TypeA, "many.default" + svc}, {dns.TypeSRV, "_http._tcp.many.default" + svc}} {
			m := h.query(t, tc.from, q.name, q.kind, tc.change...)
			m.Compress = true
			wire, err := m.Pack()
			if err != nil || len(wire) > tc.max || len(wire) < tc.max*2/3 && !tc.whole {
				t.Errorf("%s: %s: %d bytes, not just below %d: %v", name, q.name, len(wire), tc.max, err)
			}
			if tc.whole != (len(m.Answer) == 600) || tc.whole == m.Truncated {
				t.Errorf("%s: %s: %d records, truncated %v", name, q.name, len(m.Answer), m.Truncated)
			}
			opt := m.IsEdns0()
			if (opt != nil) != (tc.change != nil) || opt != nil && opt.UDPSize() != payload {
				t.Errorf("%s: %s: EDNS %v", name, q.name, opt)
			}
		}
	}
	// More than TCP takes is cut, too.
	huge := headlessService("default", "huge", "http")
	h = newHandler(t, forward.Config{}, huge, sliceOf(huge, 1, crowd(10000)...))
	if m := h.query(t, sender{pod, false}, "huge.default"+svc, dns.TypeA); len(m.Answer) < 3000 || !m.Truncated {
		t.Errorf("10,000 endpoints: %d records, truncated %v", len(m.Answer), m.Truncated)
	}
}

// Clients that take the first address of an answer spread over all endpoints.
func TestAddressesTakeTurns(t *testing.T) {
	many := headlessService("default", "many", "http")
	h := newHandler(t, forward.Config{}, many, sliceOf(many, 1, crowd(4)...))
	first := map[string]bool{}
	for range 1000 {
		m := h.query(t, sender{pod, true}, "many.default"+svc, dns.TypeA)
		first[m.Answer[0].(*dns.A).A.String()] = true
	}
	if len(first) != 4 {
		t.Errorf("the first address was only ever one of %v", first)
	}
}

func TestQuestionsThatAreRefused(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	set := func(f func(*dns.Msg)) []func(*dns.Msg) { return []func(*dns.Msg){f} }
	for name, tc := range map[string]struct {
		kind   uint16
		change []func(*dns.Msg)
		rcode  int
	}{
		"a transfer":            {dns.TypeAXFR, nil, dns.RcodeRefused},
		"a transfer of changes": {dns.TypeIXFR, nil, dns.RcodeRefused},
		"a type that is none":   {dns.TypeOPT, nil, dns.RcodeRefused},
		"mail agents":           {dns.TypeMAILA, nil, dns.RcodeRefused},
		"another class":         {dns.TypeTXT, set(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), dns.RcodeRefused},
		"any class":             {dns.TypeA, set(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }), dns.RcodeRefused},
		"an update":             {dns.TypeSOA, set(func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }), dns.RcodeNotImplemented},
		"a notification":        {dns.TypeSOA, set(func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }), dns.RcodeNotImplemented},
		"no question":           {dns.TypeA, set(func(m *dns.Msg) { m.Question = nil }), dns.RcodeFormatError},
		"two questions":         {dns.TypeA, set(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), dns.RcodeFormatError},
		"an answer":             {dns.TypeA, set(func(m *dns.Msg) { m.Answer = []dns.RR{h.zone.soa} }), dns.RcodeFormatError},
		"an authority":          {dns.TypeA, set(func(m *dns.Msg) { m.Ns = []dns.RR{h.zone.soa} }), dns.RcodeFormatError},
		"EDNS twice": {dns.TypeA, set(func(m *dns.Msg) {
			m.SetEdns0(512, false)
			m.Extra = append(m.Extra, m.Extra[0])
		}), dns.RcodeFormatError},
		"EDNS of another version": {dns.TypeA, set(func(m *dns.Msg) {
			m.SetEdns0(512, false)
			m.Extra[0].(*dns.OPT).SetVersion(1)
		}), dns.RcodeBadVers},
	} {
		for _, udp := range []bool{true, false} {
			m := h.query(t, sender{pod, udp}, "web.default"+svc, tc.kind, tc.change...)
			if m.Rcode != tc.rcode || len(m.Answer) > 0 {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// A question for all records of a name is a means to turn small questions into large answers, above
// all where others hold the records.
func TestAllRecordsAreNotTold(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	for _, name := range []string{"pets.default" + svc, "www.example.com.", "nowhere.cluster.local."} {
		for _, udp := range []bool{true, false} {
			m := h.query(t, sender{pod, udp}, name, dns.TypeANY)
			want := name + ` 28800 IN HINFO "RFC8482" ""`
			if got := text(m.Answer); m.Rcode != dns.RcodeSuccess || !slices.Equal(got, []string{want}) {
				t.Errorf("ANY %s: %v", name, m)
			}
		}
	}
}

// packet is a query as it is on the wire: header, question, and what is given behind.
func packet(counts [4]uint16, behind ...byte) []byte {
	p := []byte{0x12, 0x34, 1, 0}
	for _, c := range counts {
		p = binary.BigEndian.AppendUint16(p, c)
	}
	return append(p, behind...)
}

// pointers is a question whose name is a chain of n compression pointers, which ends in the root.
func pointers(n int) []byte {
	at := uint16(headerSize + 6) // behind the question
	body := append(binary.BigEndian.AppendUint16(nil, 0xc000|at), 0, 1, 0, 1)
	for range n - 1 {
		at += 2
		body = binary.BigEndian.AppendUint16(body, 0xc000|at)
	}
	return append(body, 0)
}

// Each of these has made some name server loop, crash or fill its memory.
func TestHostilePackets(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	label63 := append([]byte{63}, bytes.Repeat([]byte{'a'}, 63)...)
	question := []byte{1, 'x', 0, 0, 1, 0, 1}
	opt := []byte{0, 0, 41, 0x10, 0, 0, 0, 0, 0}
	const drop = -1
	for name, tc := range map[string]struct {
		packet []byte
		rcode  int // drop: there is no reply
	}{
		"nothing":                     {nil, drop},
		"a header cut short":          {packet([4]uint16{1})[:11], drop},
		"a reply":                     {slices.Concat([]byte{0x12, 0x34, 0x81, 0}, packet([4]uint16{1}, question...)[4:]), drop},
		"only a header":               {packet([4]uint16{1}), dns.RcodeFormatError},
		"a question cut short":        {packet([4]uint16{1}, 1, 'x', 0, 0, 1), dns.RcodeFormatError},
		"a pointer to itself":         {packet([4]uint16{1}, 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		"two pointers to each other":  {packet([4]uint16{1}, 0xc0, 14, 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		"a label and a pointer to it": {packet([4]uint16{1}, 1, 'x', 0xc0, 12, 0, 1, 0, 1), dns.RcodeFormatError},
		"a pointer behind the end":    {packet([4]uint16{1}, 0xff, 0xff, 0, 1, 0, 1), dns.RcodeFormatError},
		"a label of an unknown type":  {packet([4]uint16{1}, 0x80, 1, 0, 0, 1, 0, 1), dns.RcodeFormatError},
		"a name of 321 octets": {packet([4]uint16{1},
			slices.Concat(label63, label63, label63, label63, label63, []byte{0, 0, 1, 0, 1})...), dns.RcodeFormatError},
		"a name of 256 octets": {packet([4]uint16{1},
			slices.Concat(label63, label63, label63, []byte{62}, label63[1:63], []byte{0, 0, 1, 0, 1})...), dns.RcodeFormatError},
		"a chain of pointers":    {packet([4]uint16{1}, pointers(1000)...), dns.RcodeFormatError},
		"65,535 questions":       {packet([4]uint16{65535}, question...), dns.RcodeFormatError},
		"65,535 further records": {packet([4]uint16{1, 0, 0, 65535}, question...), dns.RcodeFormatError},
		"more than a query takes": {
			packet([4]uint16{1}, append(slices.Clone(question), make([]byte, maxQuery)...)...),
			dns.RcodeFormatError,
		},
		"an option longer than it is": {packet([4]uint16{1, 0, 0, 1},
			append(append(slices.Clone(question), opt...), 0, 4, 0, 10, 0xff, 0xff)...), dns.RcodeFormatError},
		"EDNS for a name": {
			packet([4]uint16{1, 0, 0, 1}, append(append(append(slices.Clone(question), 1, 'y'), opt...), 0, 0)...),
			dns.RcodeFormatError,
		},
		"an opcode that there is none": {
			slices.Concat([]byte{0x12, 0x34, 0x79, 0}, packet([4]uint16{1}, question...)[4:]),
			dns.RcodeNotImplemented,
		},
	} {
		for _, udp := range []bool{true, false} {
			reply := h.packet(tc.packet, sender{pod, udp})
			if tc.rcode == drop {
				if reply != nil {
					t.Errorf("%s: it is answered: %x", name, reply)
				}
				continue
			}
			if len(reply) < headerSize || !bytes.Equal(reply[:2], tc.packet[:2]) || int(reply[3]&0xf) != tc.rcode || reply[2]&0x80 == 0 {
				t.Errorf("%s: the reply is %x, not %s", name, reply, dns.RcodeToString[tc.rcode])
			}
			if len(reply) > len(tc.packet) {
				t.Errorf("%s: %d bytes are answered by %d", name, len(tc.packet), len(reply))
			}
		}
	}
	// That a query of this form is answered shows that it is the faults that were refused.
	good := packet([4]uint16{1, 0, 0, 1}, append(append(slices.Clone(question), opt...), 0, 0)...)
	if reply := h.packet(good, sender{pod, true}); len(reply) < headerSize || reply[3]&0xf == dns.RcodeFormatError {
		t.Errorf("a good query: %x", reply)
	}
	if reply := h.packet(packet([4]uint16{1}, pointers(10)...), sender{pod, true}); len(reply) < headerSize ||
		reply[3]&0xf != dns.RcodeServerFailure {
		t.Errorf("a short chain of pointers: %x", reply)
	}
	longest := packet([4]uint16{1}, slices.Concat(label63, label63, label63, []byte{61}, label63[1:62], []byte{0, 0, 1, 0, 1})...)
	if reply := h.packet(longest, sender{pod, true}); len(reply) < headerSize || reply[3]&0xf != dns.RcodeServerFailure {
		t.Errorf("a name of 255 octets: %x", reply)
	}
}

// FuzzHandler has the handler answer anything. A reply fits, can be read, and is none to what is no
// query.
func FuzzHandler(f *testing.F) {
	h := newHandler(f, forward.Config{}, cluster()...)
	for _, name := range []string{
		"pets.default" + svc, "_http._tcp.pets.default" + svc, "ext.default" + svc, "20.0.96.10.in-addr.arpa.",
		"www.example.com.", ".",
	} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeANY, dns.TypeSOA} {
			m := new(dns.Msg)
			m.SetQuestion(name, kind)
			m.SetEdns0(4096, true)
			p, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(p, true)
		}
	}
	f.Add(packet([4]uint16{1}, pointers(1000)...), false)
	f.Fuzz(func(t *testing.T, p []byte, udp bool) {
		reply := h.packet(p, sender{pod, udp})
		switch {
		case reply == nil:
			return
		case len(p) < headerSize || p[2]&0x80 != 0:
			t.Fatalf("%x is no query and is answered by %x", p, reply)
		case udp && len(reply) > payload, len(reply) > dns.MaxMsgSize, len(reply) < headerSize:
			t.Fatalf("the reply has %d bytes", len(reply))
		case !bytes.Equal(reply[:2], p[:2]) || reply[2]&0x80 == 0:
			t.Fatalf("%x is no reply of %x", reply, p)
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("the reply %x cannot be read: %v", reply, err)
		}
		if len(m.Question) > 0 && len(m.Answer) > 0 && !strings.EqualFold(m.Answer[0].Header().Name, m.Question[0].Name) {
			t.Fatalf("the answer is to another question: %v", &m)
		}
	})
}
