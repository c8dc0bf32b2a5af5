package rules

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// The table. What has a 4 in its name exists with a 6 for IPv6, and what has "in" with "out" for
// egress:
//
//	table inet NAME {
//	  map ident4       { ip : ident }
//	  set self4        { ip . ip }                              # each pod of the node with itself
//	  set isolated4    { ip }                                   # pods of the node with a class
//	  map in4          { ip : class }                           # pods of the node
//	  set nets_in4     { class<<20 . ip range }                 # all protocols and ports
//	  set blocks_in4   { class<<20 . ip range . l4proto . th dport range }
//	  map classes_in   { class : verdict }   # 7: goto in_7, unknown: goto unknown_in
//	  set any_in       { class<<20|ident }                      # all protocols and ports
//	  set decided_in   { class<<20|ident }                      # nets and blocks do not count for it
//	  set allow_in     { class<<20|ident . l4proto . th dport }
//	  set range_in     { class<<20|ident . l4proto . th dport range }
//	  set links        { LinkGroup }                            # of pods' links
//	  chain forward { type filter hook forward priority filter
//	    ct state established,related ct direction reply accept
//	    meta l4proto icmp ct state related accept               # and icmpv6
//	    meta l4proto tcp ct state ! established,related
//	      tcp flags & (fin|syn|rst|ack) != syn jump astray
//	    goto forward4 }
//	  chain forward4 {
//	    jump egress4
//	    jump ingress4
//	    meta priority set 0
//	    ip dscp …: meta priority set …                          # see restore
//	  }
//	  chain ingress4 {
//	    meta priority set unknown
//	    meta priority set ip daddr map @in4
//	    meta priority 0 return
//	    meta priority vmap @classes_in
//	    drop }
//	  chain unknown_in { ip daddr PodRanges drop; oifgroup @links drop }
//	  chain in_7 { jump source; meta priority set meta priority & 0xfffff | 7<<20 goto allowed_in }
//	  chain source {
//	    meta priority set 0
//	    meta priority set ip saddr map @ident4 }
//	  chain allowed_in {
//	    meta priority @any_in return
//	    meta priority . l4proto . th dport @allow_in return
//	    meta priority . l4proto . th dport @range_in return
//	    meta priority & 0xfff00000 . ip saddr @nets_in4 return
//	    meta priority & 0xfff00000 . ip saddr . l4proto . th dport @blocks_in4 return
//	    ip saddr . ip daddr @self4 return
//	    drop }
//	  chain tiers_in_8 {                                        # as in_8, of a class with decided idents
//	    jump source; meta priority set meta priority & 0xfffff | 8<<20 goto tiers_in }
//	  chain tiers_in {                                          # as allowed_in, but before the nets:
//	    ip saddr . ip daddr @self4 return
//	    meta priority @decided_in drop }
//	  chain astray {                                            # of a connection that was cut
//	    ip saddr @isolated4 drop
//	    ip daddr @isolated4 drop }
//	}
//
// What is allowed returns and is not accepted, so that both directions decide. The packet's
// priority holds what is known of it meanwhile, since marks belong to others. A protocol without
// ports is in the sets with ports only together with all of them (see protocolRanges).
type family struct{ *nftable.Family }

var families = [2]*family{{nftable.Families[0]}, {nftable.Families[1]}}

func familyOf(a netip.Addr) *family {
	if a.Is6() {
		return families[1]
	}
	return families[0]
}

// The maps and sets of a family. Of those from setPods on there are two, by Direction.
const (
	setIdent = iota
	setSelf
	setIsolated
	setPods
	setNets    = setPods + 2
	setBlocks  = setNets + 2
	familySets = setBlocks + 2
)

// The maps and sets of a direction.
const (
	setClasses = iota
	setAny
	setAllow
	setRange
	setDecided
	directionSets
)

// setLinks is the index of the last set.
const setLinks = 2*familySets + 2*directionSets

// setID is the index of a map or set in Sets.
func (f *family) setID(kind int) int { return f.Index*familySets + kind }

func (d Direction) setID(kind int) int { return 2*familySets + int(d)*directionSets + kind }

func (d Direction) name() string { return [2]string{"in", "out"}[d] }

// chain is the chain of a class.
func (c *class) chain(d Direction, number uint32) string {
	if len(c.decided) > 0 {
		return fmt.Sprintf("tiers_%s_%d", d.name(), number)
	}
	return fmt.Sprintf("%s_%d", d.name(), number)
}

// layout says what the kernel's table holds.
type layout struct{ *Table }

// Sets are all maps and sets of the table, at their setID.
func (layout) Sets() []*nftables.Set {
	type types []nftables.SetDatatype
	priority, proto, port, group := nftables.TypeClassID, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeDevGroup
	all := make([]*nftables.Set, setLinks+1)
	add := func(at int, name string, key, data types) *nftables.Set {
		s := &nftables.Set{Name: name, KeyType: nftables.MustConcatSetType(key...), Concatenation: len(key) > 1, IsMap: data != nil}
		if s.IsMap {
			s.DataType = data[0]
		}
		if key[0].Name == priority.Name || key[0].Name == group.Name { // nft shows them as they are in rules
			s.KeyByteOrder = binaryutil.NativeEndian
		}
		all[at] = s
		return s
	}
	for _, f := range families {
		add(f.setID(setIdent), "ident"+f.Name, types{f.Addr}, types{priority})
		add(f.setID(setSelf), "self"+f.Name, types{f.Addr, f.Addr}, nil)
		add(f.setID(setIsolated), "isolated"+f.Name, types{f.Addr}, nil)
		for d := Ingress; d <= Egress; d++ {
			add(f.setID(setPods+int(d)), d.name()+f.Name, types{f.Addr}, types{priority})
			add(f.setID(setNets+int(d)), "nets_"+d.name()+f.Name, types{priority, f.Addr}, nil).Interval = true
			add(f.setID(setBlocks+int(d)), "blocks_"+d.name()+f.Name, types{priority, f.Addr, proto, port}, nil).Interval = true
		}
	}
	for d := Ingress; d <= Egress; d++ {
		add(d.setID(setClasses), "classes_"+d.name(), types{priority}, types{nftables.TypeVerdict})
		add(d.setID(setAny), "any_"+d.name(), types{priority}, nil)
		add(d.setID(setAllow), "allow_"+d.name(), types{priority, proto, port}, nil)
		add(d.setID(setRange), "range_"+d.name(), types{priority, proto, port}, nil).Interval = true
		add(d.setID(setDecided), "decided_"+d.name(), types{priority}, nil)
	}
	add(setLinks, "links", types{group}, nil)
	return all
}

// Chains are all chains of the table.
func (t layout) Chains() []nftable.Chain {
	all := []nftable.Chain{forward(), astray(), peer("source", (*nftable.Family).Source), peer("destination", (*nftable.Family).Target)}
	for _, f := range families {
		all = append(all, f.forward(), f.stage(Ingress), f.stage(Egress))
	}
	for d := Ingress; d <= Egress; d++ {
		all = append(all, allowed(d), tiers(d), t.unknown(d))
		for number, c := range t.state.classes[d] {
			all = append(all, classChain(d, number, c))
		}
	}
	return all
}

func forward() nftable.Chain {
	entry := func(op expr.CmpOp) []expr.Any {
		return nftable.CtBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, op)
	}
	related := nftable.CtBits(expr.CtKeySTATE, expr.CtStateBitRELATED, expr.CmpOpNeq)
	c := nftable.Chain{
		Name: "forward", Hook: nftables.ChainHookForward, Kind: nftables.ChainTypeFilter, Priority: *nftables.ChainPriorityFilter,
		Rules: [][]expr.Any{
			nftable.Rule(entry(expr.CmpOpNeq), isReply(), nftable.Accept),
			nftable.Rule(nftable.IsProtocol(unix.IPPROTO_ICMP), related, nftable.Accept),
			nftable.Rule(nftable.IsProtocol(unix.IPPROTO_ICMPV6), related, nftable.Accept),
			nftable.Rule(nftable.IsProtocol(unix.IPPROTO_TCP), entry(expr.CmpOpEq), isNoStart(), nftable.Jump("astray")),
		},
	}
	for _, f := range families {
		c.Rules = append(c.Rules, nftable.Rule(f.Is(), nftable.Goto("forward"+f.Name)))
	}
	return c
}

func (f *family) forward() nftable.Chain {
	return nftable.Chain{Name: "forward" + f.Name, Rules: append([][]expr.Any{
		nftable.Jump(stageName(Egress, f)), nftable.Jump(stageName(Ingress, f)),
	}, f.restore()...)}
}

// restore gives a packet the priority that it had: forwarding IPv4 has just derived it from the
// type of service (rt_tos2priority in include/net/route.h), and what comes from a pod's link has 0
// otherwise.
func (f *family) restore() [][]expr.Any {
	rules := [][]expr.Any{setPriority(0)}
	if f.Protocol != unix.NFPROTO_IPV4 {
		return rules
	}
	for _, p := range []struct{ tos, priority byte }{{0x08, 2}, {0x10, 6}, {0x18, 4}} {
		rules = append(rules, nftable.Rule([]expr.Any{
			&expr.Payload{DestRegister: nftable.Reg(0), Base: expr.PayloadBaseNetworkHeader, Offset: 1, Len: 1},
			&expr.Bitwise{SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Len: 1, Mask: []byte{0x18}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: []byte{p.tos}},
		}, setPriority(uint32(p.priority))))
	}
	return rules
}

func stageName(d Direction, f *family) string { return [2]string{"ingress", "egress"}[d] + f.Name }

// stage decides one direction: it returns if the packet is allowed.
func (f *family) stage(d Direction) nftable.Chain {
	own := f.Target(0)
	if d == Egress {
		own = f.Source(0)
	}
	return nftable.Chain{Name: stageName(d, f), Rules: [][]expr.Any{
		setPriority(unknown),
		nftable.Rule(f.Is(), own, nftable.Lookup(0, 0, d.name()+f.Name), priorityFrom(0)), // nft cannot show it without the family
		nftable.Rule(loadPriority(0), nftable.Compare(expr.CmpOpEq, 0, 0), nftable.Pass),
		nftable.Rule(loadPriority(0), nftable.Decide(0, "classes_"+d.name())),
		nftable.Drop, // of a class that does not exist
	}}
}

// unknown drops what an unknown pod sends or receives. Others are not ours to decide.
func (t layout) unknown(d Direction) nftable.Chain {
	c := nftable.Chain{Name: "unknown_" + d.name()}
	link := expr.MetaKeyOIFGROUP
	if d == Egress {
		link = expr.MetaKeyIIFGROUP
	}
	for _, r := range t.PodRanges {
		f := familyOf(r.Addr())
		at := f.Dst
		if d == Egress {
			at = f.Src
		}
		c.Rules = append(c.Rules, nftable.Rule(f.Is(), f.Inside(at, r), nftable.Drop))
	}
	c.Rules = append(c.Rules, nftable.Rule(nftable.LoadMeta(link, 0), nftable.Within(0, "links"), nftable.Drop))
	return c
}

// peer finds the ident of one end of the packet.
func peer(name string, load func(*nftable.Family, uint32) []expr.Any) nftable.Chain {
	c := nftable.Chain{Name: name, Rules: [][]expr.Any{setPriority(0)}}
	for _, f := range families {
		c.Rules = append(c.Rules, nftable.Rule(f.Is(), load(f.Family, 0), nftable.Lookup(0, 0, "ident"+f.Name), priorityFrom(0)))
	}
	return c
}

// classChain is the chain that packets of a class take.
func classChain(d Direction, number uint32, c *class) nftable.Chain {
	peer, next := [2]string{"source", "destination"}[d], allowedName(d)
	if len(c.decided) > 0 {
		next = tiersName(d)
	}
	return nftable.Chain{Name: c.chain(d, number), Rules: [][]expr.Any{
		nftable.Jump(peer),
		nftable.Rule(loadPriority(0), nftable.Mask(0, identMask, number<<classShift), priorityFrom(0), nftable.Goto(next)),
	}}
}

func allowedName(d Direction) string { return "allowed_" + d.name() }

func tiersName(d Direction) string { return "tiers_" + d.name() }

func allowed(d Direction) nftable.Chain {
	c := nftable.Chain{Name: allowedName(d), Rules: byIdent(d)}
	for _, f := range families {
		c.Rules = append(append(c.Rules, f.byAddress(d)...), f.self())
	}
	c.Rules = append(c.Rules, nftable.Drop)
	return c
}

// tiers is allowed for classes with decided idents.
func tiers(d Direction) nftable.Chain {
	c := nftable.Chain{Name: tiersName(d), Rules: byIdent(d)}
	for _, f := range families {
		c.Rules = append(c.Rules, f.self())
	}
	c.Rules = append(c.Rules, nftable.Rule(loadPriority(0), nftable.Within(0, "decided_"+d.name()), nftable.Drop))
	for _, f := range families {
		c.Rules = append(c.Rules, f.byAddress(d)...)
	}
	c.Rules = append(c.Rules, nftable.Drop)
	return c
}

// byIdent returns for what the peer's ident may send or receive.
func byIdent(d Direction) [][]expr.Any {
	exact := nftable.Rule(loadPriority(0), nftable.ProtocolPort(1))
	return [][]expr.Any{
		nftable.Rule(loadPriority(0), nftable.Within(0, "any_"+d.name()), nftable.Pass),
		nftable.Rule(exact, nftable.Within(0, "allow_"+d.name()), nftable.Pass),
		nftable.Rule(exact, nftable.Within(0, "range_"+d.name()), nftable.Pass),
	}
}

// byAddress returns for what the peer's address may send or receive.
func (f *family) byAddress(d Direction) [][]expr.Any {
	peer := f.Source(1)
	if d == Egress {
		peer = f.Target(1)
	}
	class := nftable.Rule(loadPriority(0), nftable.Mask(0, classMask, 0))
	return [][]expr.Any{
		nftable.Rule(f.Is(), class, peer, nftable.Within(0, "nets_"+d.name()+f.Name), nftable.Pass),
		nftable.Rule(f.Is(), class, peer, nftable.ProtocolPort(1+f.Words()), nftable.Within(0, "blocks_"+d.name()+f.Name), nftable.Pass),
	}
}

// self returns for what a pod sends to itself.
func (f *family) self() []expr.Any {
	return nftable.Rule(f.Is(), f.Source(0), f.Target(f.Words()), nftable.Within(0, "self"+f.Name), nftable.Pass)
}

// astray drops TCP packets in the middle of a connection that the kernel does not know, if a pod at
// either end is isolated: after a connection was cut, the next packet of its server would begin one
// in the other direction, which may be allowed.
func astray() nftable.Chain {
	c := nftable.Chain{Name: "astray"}
	for _, f := range families {
		for _, end := range [][]expr.Any{f.Source(0), f.Target(0)} {
			c.Rules = append(c.Rules, nftable.Rule(f.Is(), end, nftable.Within(0, "isolated"+f.Name), nftable.Drop))
		}
	}
	return c
}

func loadPriority(to uint32) []expr.Any { return nftable.LoadMeta(expr.MetaKeyPRIORITY, to) }

func priorityFrom(register uint32) []expr.Any {
	return nftable.SetMeta(expr.MetaKeyPRIORITY, register)
}

func setPriority(v uint32) []expr.Any { return nftable.Rule(nftable.Constant(0, v), priorityFrom(0)) }

// isReply matches packets of a connection's second direction.
func isReply() []expr.Any {
	const reply = 1 // IP_CT_DIR_REPLY (linux/netfilter/nf_conntrack_tuple_common.h)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: nftable.Reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: []byte{reply}},
	}
}

// isNoStart matches TCP packets that do not begin a connection.
func isNoStart() []expr.Any {
	const flagsAt, fin, syn, rst, ack = 13, 0x01, 0x02, 0x04, 0x10 // RFC 9293, section 3.1
	return []expr.Any{
		&expr.Payload{DestRegister: nftable.Reg(0), Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Len: 1, Mask: []byte{fin | syn | rst | ack}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: nftable.Reg(0), Data: []byte{syn}},
	}
}
