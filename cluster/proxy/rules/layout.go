package rules

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
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
type family struct{ *nftable.Family }

var families = [2]*family{{nftable.Families[0]}, {nftable.Families[1]}}

func familyOf(ipv6 bool) *family {
	if ipv6 {
		return families[1]
	}
	return families[0]
}

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
func (f *family) setID(kind int) int { return f.Index*setsOfFamily + kind }

// affinities is how many clients the kernel remembers.
const affinities = 65536

// layout says what the kernel's table holds.
type layout struct{ *Table }

// Sets are all maps and sets of the table, at their setID.
func (layout) Sets() []*nftables.Set {
	mark, proto, port := nftables.TypeMark, nftables.TypeInetProto, nftables.TypeInetService
	var all []*nftables.Set
	for _, f := range families {
		target := []nftables.SetDatatype{f.Addr, port}
		service := []nftables.SetDatatype{f.Addr, proto, port}
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
			setSources:  {"sources", []nftables.SetDatatype{f.Addr, proto, port, f.Addr}, nil},
			setPods:     {"pods", []nftables.SetDatatype{f.Addr}, nil},
			setHairpin:  {"hairpin", []nftables.SetDatatype{f.Addr, f.Addr}, nil},
			setAff:      {"aff", []nftables.SetDatatype{f.Addr, mark}, []nftables.SetDatatype{mark}},
		} {
			set := &nftables.Set{
				Name:    s.name + f.Name,
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

// Chains are all chains of the table.
func (t layout) Chains() []nftable.Chain {
	all := []nftable.Chain{
		{Name: "no_endpoints", Rules: [][]expr.Any{
			nftable.Rule(nftable.IsProtocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
			{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}},
		}},
		{Name: "no_local", Rules: [][]expr.Any{nftable.Drop}},
	}
	for _, f := range families {
		for _, kind := range t.kinds.all(f) {
			all = append(all, t.kinds.chain(f, kind))
		}
	}
	for _, f := range families {
		all = append(all, nftable.Chain{Name: "kind" + f.Name, Rules: [][]expr.Any{
			t.tell(noteOurs),
			nftable.Rule(hasChoice(markMasquerade), t.tell(noteMasquerade)),
			nftable.Rule(loadChoice(0, markKind), nftable.Decide(0, "kinds"+f.Name)),
			nftable.Drop,
		}})
	}
	prerouting := nftable.Chain{
		Name: "prerouting", Hook: nftables.ChainHookPrerouting, Kind: nftables.ChainTypeNAT, Priority: *nftables.ChainPriorityNATDest,
	}
	prerouting.Rules = append(prerouting.Rules, nftable.Jump("limited"))
	for _, f := range families {
		prerouting.Rules = append(prerouting.Rules, nftable.Rule(f.Is(), f.Source(0), nftable.Within(0, "pods"+f.Name), nftable.Jump("inside")))
	}
	for _, r := range t.PodRanges {
		f := familyOf(r.Addr().Is6())
		prerouting.Rules = append(prerouting.Rules, nftable.Rule(f.Is(), f.Inside(f.Src, r), nftable.Jump("inside")))
	}
	prerouting.Rules = append(prerouting.Rules, nftable.Jump("services"))
	return append(
		all, t.unknown(), t.limited(),
		lookups("services", "svc", "nodeport", [][]expr.Any{nftable.Rule(notLocal(), nftable.Goto("unknown"))}, nil),
		lookups("inside", "inside", "nodein", [][]expr.Any{nftable.Rule(notLocal(), nftable.Pass)}, nil),
		lookups("inside_node", "inside", "nodein", [][]expr.Any{nftable.Rule(notLocal(), nftable.Pass)}, setChoice(markMasquerade)),
		prerouting,
		nftable.Chain{
			Name: "output", Hook: nftables.ChainHookOutput, Kind: nftables.ChainTypeNAT, Priority: *nftables.ChainPriorityNATDest,
			Rules: [][]expr.Any{nftable.Jump("limited"), nftable.Jump("inside_node"), nftable.Jump("services")},
		},
		t.postrouting(),
	)
}

// lookups is a chain that finds the backend of a packet's destination: an address of a Service, or,
// unless the rules between say otherwise, a port of the node.
func lookups(name, addresses, ports string, between [][]expr.Any, alter []expr.Any) nftable.Chain {
	c := nftable.Chain{Name: name}
	kind := func(f *family) []expr.Any { return nftable.Rule(alter, nftable.Goto("kind"+f.Name)) }
	for _, f := range families {
		c.Rules = append(c.Rules, nftable.Rule(f.Is(), f.service(), nftable.Lookup(0, 0, addresses+f.Name), storeChoice(0), kind(f)))
	}
	c.Rules = append(c.Rules, between...)
	for _, f := range families {
		c.Rules = append(c.Rules, nftable.Rule(
			f.Is(), f.Outside(f.Dst, f.Loopback), nftable.ProtocolPort(0), nftable.Lookup(0, 0, ports+f.Name), storeChoice(0), kind(f),
		))
	}
	return c
}

func (t *Table) unknown() nftable.Chain {
	c := nftable.Chain{Name: "unknown"}
	for _, r := range t.Ranges {
		f := familyOf(r.Addr().Is6())
		c.Rules = append(c.Rules, nftable.Rule(f.Is(), f.Inside(f.Dst, r), nftable.Goto("no_endpoints")))
	}
	return c
}

func (t *Table) limited() nftable.Chain {
	c := nftable.Chain{Name: "limited"}
	for _, f := range families {
		c.Rules = append(c.Rules, nftable.Rule(
			f.Is(), f.service(), nftable.Within(0, "limited"+f.Name),
			f.service(), f.Source(f.Words()+2), nftable.Without(0, "sources"+f.Name),
			nftable.Drop,
		))
	}
	return c
}

func (t *Table) postrouting() nftable.Chain {
	c := nftable.Chain{
		Name: "postrouting", Hook: nftables.ChainHookPostrouting, Kind: nftables.ChainTypeNAT,
		Priority: *nftables.ChainPriorityNATSource - 1, // before tables that would masquerade it
		Rules:    [][]expr.Any{nftable.Rule(t.untold(noteOurs), nftable.Pass), nftable.Rule(isNotTranslated, nftable.Pass), clearChoice},
	}
	for _, f := range families {
		hairpin := nftable.Rule(f.Source(0), f.Target(f.Words()), nftable.Within(0, "hairpin"+f.Name))
		c.Rules = append(c.Rules,
			nftable.Rule(f.Is(), hairpin, t.asNode(f)),
			nftable.Rule(f.Is(), nftable.FromNode(), f.Target(0), nftable.Within(0, "pods"+f.Name), t.asIs(f)),
			nftable.Rule(f.Is(), t.told(noteMasquerade), t.asNode(f)),
			nftable.Rule(f.Is(), f.Target(0), nftable.Within(0, "pods"+f.Name), t.asIs(f)),
		)
	}
	if last := t.forget(); last != nil {
		c.Rules = append(c.Rules, last)
	}
	return c
}

// asIs keeps the source of a connection, also from the rules of other tables.
func (t *Table) asIs(f *family) []expr.Any {
	return nftable.Rule(t.forget(), f.Source(0),
		[]expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0)}})
}

// asNode gives a connection the node's address. Its port is random: that of a client may be in use.
// If no address is known, it is the address that the client asked for, which leads back to the
// node, too, unless the endpoint is elsewhere. Masquerading would drop the connection where the
// node has only addresses of scope host.
func (t *Table) asNode(f *family) []expr.Any {
	// The nftables package (0.3.0) sends the direction in four bytes instead of one: the kernel
	// takes the first, and logs that.
	address := []expr.Any{&expr.Ct{Key: expr.CtKeyDST, Direction: ctOriginal, Register: nftable.Reg(0)}}
	for _, a := range t.NodeIPs {
		if a.Is6() == (f.Index == 1) {
			address = []expr.Any{&expr.Immediate{Register: nftable.Reg(0), Data: a.AsSlice()}}
			break
		}
	}
	return nftable.Rule(t.forget(), address, []expr.Any{
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0), FullyRandom: true},
	})
}

func pickName(f *family, count int) string { return fmt.Sprintf("pick%s_%d", f.Name, count) }

func stickName(f *family, s sticky) string {
	return fmt.Sprintf("stick%s_%d_%d", f.Name, s.count, int(s.timeout/time.Second))
}

// pick chooses one of count endpoints.
func (f *family) pick(count int) nftable.Chain {
	to := func(modulus int) []expr.Any {
		return nftable.Rule(f.slot(modulus), nftable.Lookup(0, 0, "ep"+f.Name), f.translate())
	}
	c := nftable.Chain{Name: pickName(f, count), Rules: [][]expr.Any{to(count)}}
	if count > 1 {
		c.Rules = append(c.Rules, to(1))
	}
	c.Rules = append(c.Rules, nftable.Drop)
	return c
}

// stick chooses the endpoint that the client had last, if it exists still, else one of count. The
// choice becomes the endpoint's id:
//
//	meta priority set meta priority & 0xfffff000 . numgen random mod 4 map @epid4
//	meta priority set ip saddr . meta priority & 0xfffff000 map @aff4              # a known client
//	update @aff4 { ip saddr . meta priority & 0xfffff000 timeout 3h : meta priority }
//	dnat ip to meta priority map @byid4
//	delete @aff4 { ip saddr . meta priority & 0xfffff000 : meta priority }         # that endpoint is gone
//	…and the first, third and fourth again, then drop
func (f *family) stick(s sticky) nftable.Chain {
	client := func() []expr.Any {
		return nftable.Rule(f.Source(0), loadChoice(f.Words(), markNumber))
	}
	remember := func(operation uint32, timeout time.Duration) []expr.Any {
		return nftable.Rule(client(), choice(f.Words()+1), []expr.Any{&expr.Dynset{
			SrcRegKey: nftable.Reg(0), SrcRegData: nftable.Reg(f.Words() + 1), SetName: "aff" + f.Name, Operation: operation, Timeout: timeout,
		}})
	}
	choose := nftable.Rule(f.slot(s.count), nftable.Lookup(0, 0, "epid"+f.Name), storeChoice(0))
	update := remember(unix.NFT_DYNSET_OP_UPDATE, s.timeout)
	translate := nftable.Rule(choice(0), nftable.Lookup(0, 0, "byid"+f.Name), f.translate())
	return nftable.Chain{Name: stickName(f, s), Rules: [][]expr.Any{
		choose,
		nftable.Rule(client(), nftable.Lookup(0, 0, "aff"+f.Name), storeChoice(0)),
		update, translate,
		remember(opDelete, 0),
		choose, update, translate, nftable.Drop,
	}}
}
