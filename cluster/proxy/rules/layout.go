package rules

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The table. Each map and set exists for IPv4 and, with a 6 in its name, for IPv6:
//
//	table inet NAME {
//	  map svc4       { ip daddr . l4proto . th dport : mark }   # a Service's address
//	  map inside4    { the same }                               # the same for this node and its pods, if different
//	  map nodeport4  { l4proto . th dport : mark }              # a port of the node
//	  map nodein4    { the same }                               # the same for this node and its pods, if different
//	  map kinds4     { mark : verdict }                         # 0 : goto no_endpoints, 2 : goto pick4_2
//	  map ep4        { mark . slot : ip . port }                # the endpoints of a backend
//	  map epid4      { mark . slot : mark }                     # their ids, with affinity
//	  map byid4      { mark : ip . port }                       # the endpoint with an id
//	  map aff4       { ip saddr . mark : mark, dynamic }        # a client's endpoint, by id
//	  set limited4   { ip daddr . l4proto . th dport }          # has source ranges
//	  set sources4   { ip daddr . l4proto . th dport . ip saddr, interval }
//	  set pods4      { ip }                                     # the node's pods
//	  set hairpin4   { ip . ip }                                # each of them with itself
//	  chain prerouting { type nat hook prerouting priority dstnat
//	    jump limited
//	    ip saddr @pods4 jump inside                             # and PodRanges
//	    jump services }
//	  chain output { type nat hook output priority dstnat
//	    jump limited; jump inside_node; jump services }
//	  chain limited {
//	    ip daddr . l4proto . th dport @limited4 ip daddr . l4proto . th dport . ip saddr != @sources4 drop }
//	  chain services {
//	    meta priority set ip daddr . l4proto . th dport map @svc4 goto kind4       # see choice.go
//	    fib daddr type != local goto unknown
//	    ip daddr != 127.0.0.0/8 meta priority set l4proto . th dport map @nodeport4 goto kind4 }
//	  chain inside { the same with inside4 and nodein4 }
//	  chain inside_node { the same, and the choice has masquerade }
//	  chain unknown { ip daddr 10.96.0.0/16 goto no_endpoints }
//	  chain kind4 {
//	    ct label set 127
//	    meta priority & 0x800 != 0 ct label set 126
//	    meta priority & 0x7ff vmap @kinds4
//	    drop }                                                  # the kind has just gone
//	  chain pick4_2 {                                           # one for each number of endpoints
//	    dnat ip to meta priority & 0xfffff000 . numgen random mod 2 map @ep4
//	    dnat ip to meta priority & 0xfffff000 . numgen random mod 1 map @ep4       # the backend has just shrunk
//	    drop }
//	  chain stick4_2_10800 { … }                                # see stick
//	  chain postrouting { type nat hook postrouting priority srcnat - 1
//	    ct label != 127 return
//	    ct status & dnat == 0 return
//	    meta priority set 0
//	    ip saddr . ip daddr @hairpin4 snat to 192.0.2.1         # NodeIPs
//	    fib saddr type local ip daddr @pods4 snat to ip saddr
//	    ct label 126 snat to 192.0.2.1
//	    ip daddr @pods4 snat to ip saddr }                      # no other table changes the source
//	}
type family struct {
	index    int
	name     string // "4" or "6"
	protocol byte   // NFPROTO_
	size     uint32 // of an address
	src, dst uint32 // offsets in the header
	addr     nftables.SetDatatype
	loopback netip.Prefix
}

var families = [2]*family{
	{0, "4", unix.NFPROTO_IPV4, 4, 12, 16, nftables.TypeIPAddr, netip.MustParsePrefix("127.0.0.0/8")},
	{1, "6", unix.NFPROTO_IPV6, 16, 8, 24, nftables.TypeIP6Addr, netip.MustParsePrefix("::1/128")},
}

func familyOf(ipv6 bool) *family {
	if ipv6 {
		return families[1]
	}
	return families[0]
}

// words is the number of registers of four bytes that an address fills.
func (f *family) words() uint32 { return f.size / 4 }

// The maps and sets of a family, in the order in which a transaction changes them.
const (
	setEp = iota
	setEpid
	setByid
	setKinds
	setSvc
	setInside
	setNodePort
	setNodeIn
	setLimited
	setSources
	setPods
	setHairpin
	setAff
	setsOfFamily
)

// setID is the index of a family's map or set in sets.
func (f *family) setID(kind int) int { return f.index*setsOfFamily + kind }

// affinities is how many clients the kernel remembers.
const affinities = 65536

// sets are all maps and sets of the table, at their setID.
func (t *Table) sets() []*nftables.Set {
	mark, proto, port := nftables.TypeMark, nftables.TypeInetProto, nftables.TypeInetService
	var all []*nftables.Set
	for _, f := range families {
		target := []nftables.SetDatatype{f.addr, port}
		service := []nftables.SetDatatype{f.addr, proto, port}
		for _, s := range [setsOfFamily]struct {
			name      string
			key, data []nftables.SetDatatype
		}{
			setEp:       {"ep", []nftables.SetDatatype{mark, mark}, target},
			setEpid:     {"epid", []nftables.SetDatatype{mark, mark}, []nftables.SetDatatype{mark}},
			setByid:     {"byid", []nftables.SetDatatype{mark}, target},
			setKinds:    {"kinds", []nftables.SetDatatype{mark}, []nftables.SetDatatype{nftables.TypeVerdict}},
			setSvc:      {"svc", service, []nftables.SetDatatype{mark}},
			setInside:   {"inside", service, []nftables.SetDatatype{mark}},
			setNodePort: {"nodeport", []nftables.SetDatatype{proto, port}, []nftables.SetDatatype{mark}},
			setNodeIn:   {"nodein", []nftables.SetDatatype{proto, port}, []nftables.SetDatatype{mark}},
			setLimited:  {"limited", service, nil},
			setSources:  {"sources", []nftables.SetDatatype{f.addr, proto, port, f.addr}, nil},
			setPods:     {"pods", []nftables.SetDatatype{f.addr}, nil},
			setHairpin:  {"hairpin", []nftables.SetDatatype{f.addr, f.addr}, nil},
			setAff:      {"aff", []nftables.SetDatatype{f.addr, mark}, []nftables.SetDatatype{mark}},
		} {
			set := &nftables.Set{
				Table: t.kernel.table, Name: s.name + f.name, ID: uint32(len(all) + 1),
				KeyType: nftables.MustConcatSetType(s.key...), Concatenation: len(s.key) > 1, IsMap: s.data != nil,
			}
			if s.data != nil {
				set.DataType = nftables.MustConcatSetType(s.data...)
			}
			if s.key[0].Name == mark.Name { // nft shows them as they are in rules
				set.KeyByteOrder = binaryutil.NativeEndian
			}
			all = append(all, set)
		}
		all[f.setID(setSources)].Interval = true
		aff := all[f.setID(setAff)]
		aff.Dynamic, aff.HasTimeout, aff.Size = true, true, affinities
	}
	return all
}

// chain is a chain with its rules.
type chain struct {
	name     string
	hook     *nftables.ChainHook // nil for chains that others jump to
	kind     nftables.ChainType
	priority nftables.ChainPriority
	rules    [][]expr.Any
}

// chains are all chains of the table. One that others refer to comes before them.
func (t *Table) chains() []chain {
	all := []chain{
		{name: "no_endpoints", rules: [][]expr.Any{
			rule(isProtocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
			{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}},
		}},
		{name: "no_local", rules: [][]expr.Any{drop}},
	}
	for _, f := range families {
		for _, kind := range t.kinds.all(f) {
			all = append(all, t.kinds.chain(f, kind))
		}
	}
	for _, f := range families {
		all = append(all, chain{name: "kind" + f.name, rules: [][]expr.Any{
			t.tell(noteOurs),
			rule(hasChoice(markMasquerade), t.tell(noteMasquerade)),
			rule(loadChoice(reg(0), markKind), lookup(reg(0), verdictRegister, "kinds"+f.name)),
			drop,
		}})
	}
	prerouting := chain{
		name: "prerouting", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeNAT, priority: *nftables.ChainPriorityNATDest,
	}
	prerouting.rules = append(prerouting.rules, jump("limited"))
	for _, f := range families {
		prerouting.rules = append(prerouting.rules, rule(f.is(), f.source(reg(0)), within(reg(0), "pods"+f.name), jump("inside")))
	}
	for _, r := range t.PodRanges {
		f := familyOf(r.Addr().Is6())
		prerouting.rules = append(prerouting.rules, rule(f.is(), f.inside(f.src, r), jump("inside")))
	}
	prerouting.rules = append(prerouting.rules, jump("services"))
	return append(
		all, t.unknown(), t.limited(),
		lookups("services", "svc", "nodeport", [][]expr.Any{rule(notLocal(), jumpTo("unknown", expr.VerdictGoto))}, nil),
		lookups("inside", "inside", "nodein", [][]expr.Any{rule(notLocal(), pass)}, nil),
		lookups("inside_node", "inside", "nodein", [][]expr.Any{rule(notLocal(), pass)}, setChoice(markMasquerade)),
		prerouting,
		chain{
			name: "output", hook: nftables.ChainHookOutput, kind: nftables.ChainTypeNAT, priority: *nftables.ChainPriorityNATDest,
			rules: [][]expr.Any{jump("limited"), jump("inside_node"), jump("services")},
		},
		t.postrouting(),
	)
}

// lookups is a chain that finds the backend of a packet's destination: an address of a Service, or, unless
// the rules between say otherwise, a port of the node.
func lookups(name, addresses, ports string, between [][]expr.Any, alter []expr.Any) chain {
	c := chain{name: name}
	kind := func(f *family) []expr.Any { return rule(alter, jumpTo("kind"+f.name, expr.VerdictGoto)) }
	for _, f := range families {
		c.rules = append(c.rules, rule(f.is(), f.service(), lookup(reg(0), reg(0), addresses+f.name), storeChoice(reg(0)), kind(f)))
	}
	c.rules = append(c.rules, between...)
	for _, f := range families {
		c.rules = append(c.rules, rule(
			f.is(), f.outside(f.dst, f.loopback), protocolPort(0), lookup(reg(0), reg(0), ports+f.name), storeChoice(reg(0)), kind(f),
		))
	}
	return c
}

func (t *Table) unknown() chain {
	c := chain{name: "unknown"}
	for _, r := range t.Ranges {
		f := familyOf(r.Addr().Is6())
		c.rules = append(c.rules, rule(f.is(), f.inside(f.dst, r), jumpTo("no_endpoints", expr.VerdictGoto)))
	}
	return c
}

func (t *Table) limited() chain {
	c := chain{name: "limited"}
	for _, f := range families {
		c.rules = append(c.rules, rule(
			f.is(), f.service(), within(reg(0), "limited"+f.name),
			f.service(), f.source(reg(f.words()+2)), []expr.Any{&expr.Lookup{SourceRegister: reg(0), SetName: "sources" + f.name, Invert: true}},
			drop,
		))
	}
	return c
}

func (t *Table) postrouting() chain {
	c := chain{
		name: "postrouting", hook: nftables.ChainHookPostrouting, kind: nftables.ChainTypeNAT,
		priority: *nftables.ChainPriorityNATSource - 1, // before tables that would masquerade it
		rules:    [][]expr.Any{rule(t.untold(noteOurs), pass), rule(isNotTranslated, pass), clearChoice},
	}
	for _, f := range families {
		hairpin := rule(f.source(reg(0)), f.target(reg(f.words())), within(reg(0), "hairpin"+f.name))
		c.rules = append(c.rules,
			rule(f.is(), hairpin, t.asNode(f)),
			rule(f.is(), fromNode(), f.target(reg(0)), within(reg(0), "pods"+f.name), t.asIs(f)),
			rule(f.is(), t.told(noteMasquerade), t.asNode(f)),
			rule(f.is(), f.target(reg(0)), within(reg(0), "pods"+f.name), t.asIs(f)),
		)
	}
	if last := t.forget(); last != nil {
		c.rules = append(c.rules, last)
	}
	return c
}

// asIs keeps the source of a connection, also from the rules of other tables.
func (t *Table) asIs(f *family) []expr.Any {
	return rule(t.forget(), f.source(reg(0)), []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.protocol), RegAddrMin: reg(0)}})
}

// asNode gives a connection the node's address. Its port is random: that of a client may be in use. If no
// address is known, it is the address that the client asked for, which leads back to the node, too, unless the
// endpoint is elsewhere. Masquerading would drop the connection where the node has only addresses of scope host.
func (t *Table) asNode(f *family) []expr.Any {
	// The nftables package (0.3.0) sends the direction in four bytes instead of one: the kernel takes the first,
	// and logs that.
	address := []expr.Any{&expr.Ct{Key: expr.CtKeyDST, Direction: ctOriginal, Register: reg(0)}}
	for _, a := range t.NodeIPs {
		if a.Is6() == (f.index == 1) {
			address = []expr.Any{&expr.Immediate{Register: reg(0), Data: a.AsSlice()}}
			break
		}
	}
	return rule(t.forget(), address, []expr.Any{
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.protocol), RegAddrMin: reg(0), FullyRandom: true},
	})
}

func pickName(f *family, count int) string { return fmt.Sprintf("pick%s_%d", f.name, count) }

func stickName(f *family, s sticky) string {
	return fmt.Sprintf("stick%s_%d_%d", f.name, s.count, int(s.timeout/time.Second))
}

// pick chooses one of count endpoints.
func (f *family) pick(count int) chain {
	to := func(modulus int) []expr.Any {
		return rule(f.slot(modulus), lookup(reg(0), reg(0), "ep"+f.name), f.translate())
	}
	c := chain{name: pickName(f, count), rules: [][]expr.Any{to(count)}}
	if count > 1 {
		c.rules = append(c.rules, to(1))
	}
	c.rules = append(c.rules, drop)
	return c
}

// stick chooses the endpoint that the client had last, if it exists still, else one of count. The choice becomes the
// endpoint's id:
//
//	meta priority set meta priority & 0xfffff000 . numgen random mod 4 map @epid4
//	meta priority set ip saddr . meta priority & 0xfffff000 map @aff4              # a known client
//	update @aff4 { ip saddr . meta priority & 0xfffff000 timeout 3h : meta priority }
//	dnat ip to meta priority map @byid4
//	delete @aff4 { ip saddr . meta priority & 0xfffff000 : meta priority }         # that endpoint is gone
//	…and the first, third and fourth again, then drop
func (f *family) stick(s sticky) chain {
	client := func() []expr.Any {
		return rule(f.source(reg(0)), loadChoice(reg(f.words()), markNumber))
	}
	remember := func(operation uint32, timeout time.Duration) []expr.Any {
		return rule(client(), choice(reg(f.words()+1)), []expr.Any{&expr.Dynset{
			SrcRegKey: reg(0), SrcRegData: reg(f.words() + 1), SetName: "aff" + f.name, Operation: operation, Timeout: timeout,
		}})
	}
	choose := rule(f.slot(s.count), lookup(reg(0), reg(0), "epid"+f.name), storeChoice(reg(0)))
	update := remember(unix.NFT_DYNSET_OP_UPDATE, s.timeout)
	translate := rule(choice(reg(0)), lookup(reg(0), reg(0), "byid"+f.name), f.translate())
	return chain{name: stickName(f, s), rules: [][]expr.Any{
		choose,
		rule(client(), lookup(reg(0), reg(0), "aff"+f.name), storeChoice(reg(0))),
		update, translate,
		remember(opDelete, 0),
		choose, update, translate, drop,
	}}
}
