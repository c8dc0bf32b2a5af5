package paths

import (
	"context"
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
)

// The table. What has a 4 in its name exists with a 6 for IPv6. TUNNEL is the device of either
// underlay, OWN a range of this node's pods, END the first address of that.
//
//	table inet coracle-overlay-6443 {
//	  set nodes4 { ip }                              # other nodes
//	  set peers4 { nfproto . ip range }              # ranges of their pods
//	  set own4 { ip }                                # this node's InternalIPs
//	  map source4 { nfproto : ip }                   # the first of these
//	  chain input { type filter hook input priority raw
//	    udp dport PORT @th,96,24 VNI ip saddr != @nodes4 drop
//	    udp dport PORT @th,96,24 VNI ct status dnat drop }
//	  chain prerouting { type filter hook prerouting priority raw
//	    iifname TUNNEL goto tunnelled }
//	  chain tunnelled {
//	    meta nfproto . ip saddr @peers4 return
//	    ip saddr @nodes4 return                      # such as errors of ICMP
//	    drop }
//	  chain forward { type filter hook forward priority mangle
//	    udp dport PORT @th,96,24 VNI goto smuggled
//	    oifname TUNNEL tcp flags & (syn|rst) == syn tcp option maxseg size set rt mtu
//	    iifname TUNNEL …the same }
//	  chain smuggled {                               # see below
//	    ct status dnat drop
//	    ip daddr @nodes4 ip saddr != @nodes4 drop
//	    ip saddr OWN ip daddr != OWN meta nfproto . ip daddr != @peers4 drop }
//	  chain postrouting { type nat hook postrouting priority srcnat - 2
//	    ip saddr OWN meta nfproto . ip daddr @peers4 snat to ip saddr   # no other table changes it
//	    oifname TUNNEL ip saddr OWN return
//	    oifname TUNNEL snat to END                   # answers come back through the tunnel
//	    meta nfproto . ip daddr @peers4 ip saddr != @own4 fib saddr type local
//	      snat to meta nfproto map @source4          # on a direct route
//	    ip daddr @nodes4 ct status dnat ip saddr != @own4 fib saddr type local
//	      snat to meta nfproto map @source4 }        # an endpoint of a Service
//	}
//
// With encryption, TUNNEL is the device that encrypts, and the chain prerouting goes on with
//
//	meta nfproto . ip saddr @peers4 drop
//
// so that unencrypted packets in the name of another node's pod reach nothing. The chains input and
// tunnelled let no node in then.
//
// What this node forwards may leave with its own address as source, and other nodes take tunnelled
// packets from that. Pods could send anything into the tunnel in this way, in the name of any pod.
// So the chain smuggled drops tunnelled packets of others while they still have their own source.
// A node listens for tunnelled packets at all of its addresses. So pods may send such packets only
// to pods: a cluster inside pods may have the same port and network. No tunnel of nodes leads by a
// Service, which may give packets the address of the node that chooses the endpoint.
//
// The chain postrouting precedes that of Services, which would give packets the node's address. In
// a tunnel, the answer would go to that address by the underlay, with a pod's address as source,
// which networks of clouds drop.
//
// On a direct route, other nodes let only a node's InternalIP and its pods in. A machine may have
// more addresses, and the kernel chooses one for a connection to a Service by the route to the
// Service's address, which is often the default route, before the endpoint is known. An address
// that a program has bound its socket to is replaced, too. So is the source of a connection to a
// Service that was translated to another node's address: that of a pod on the node's network, which
// may have no way back to another address. What goes to a node's address itself stays.
type rules struct {
	Config
	table *nftable.Table
	now   Filter
}

const (
	setNodes = iota
	setPeers
	setOwn
	setSource
	setsOfFamily
)

func openRules(c Config) (*rules, error) {
	r := &rules{Config: c, now: New(Node{}, nil).Filter}
	var err error
	r.table, err = nftable.Open(TableOf(c.Cluster), r, c.Log)
	return r, err
}

func (r *rules) close() error { return r.table.Close() }

// apply puts a filter in force.
func (r *rules) apply(ctx context.Context, want Filter) error {
	b := r.table.Batch()
	before := maps.Collect(pairs(r.now))
	after := maps.Collect(pairs(want))
	for e := range before {
		if _, stays := after[e]; !stays {
			b.Remove(e)
		}
	}
	for e := range after {
		if _, was := before[e]; !was {
			b.Put(e)
		}
	}
	r.now = want
	if !b.Whole() && maps.Equal(before, after) {
		return nil
	}
	return r.table.Apply(ctx, b)
}

// repair corrects what someone else has changed.
func (r *rules) repair(ctx context.Context) error {
	_, err := r.table.Repair(ctx)
	return err
}

func pairs(f Filter) iter.Seq2[nftable.Element, struct{}] {
	return func(yield func(nftable.Element, struct{}) bool) {
		known := map[*nftable.Family]bool{}
		for _, a := range f.Own {
			family := familyOf(a)
			sets, value := family.Index*setsOfFamily, nftable.Field(a)
			if !yield(nftable.Element{Set: sets + setOwn, Key: value}, struct{}{}) {
				return
			}
			if known[family] {
				continue
			}
			known[family] = true
			if !yield(nftable.Element{Set: sets + setSource, Key: string([]byte{family.Protocol}), Value: value}, struct{}{}) {
				return
			}
		}
		for a := range f.Nodes {
			if !yield(nftable.Element{Set: familyOf(a).Index*setsOfFamily + setNodes, Key: nftable.Field(a)}, struct{}{}) {
				return
			}
		}
		for p := range f.Peers {
			family := familyOf(p.Addr())
			proto := nftable.Field8(family.Protocol)
			if !yield(nftable.Element{
				Set: family.Index*setsOfFamily + setPeers, Key: proto + nftable.Field(p.Addr()), End: proto + nftable.Field(nftable.Last(p)),
			}, struct{}{}) {
				return
			}
		}
	}
}

func familyOf(a netip.Addr) *nftable.Family {
	if a.Is4() {
		return nftable.Families[0]
	}
	return nftable.Families[1]
}

// Elements implements nftable.Layout.
func (r *rules) Elements() iter.Seq[nftable.Element] {
	return func(yield func(nftable.Element) bool) {
		for e := range pairs(r.now) {
			if !yield(e) {
				return
			}
		}
	}
}

// Sets implements nftable.Layout.
func (r *rules) Sets() []*nftables.Set {
	var all []*nftables.Set
	for _, f := range nftable.Families {
		all = append(all,
			&nftables.Set{Name: "nodes" + f.Name, KeyType: f.Addr},
			&nftables.Set{
				Name: "peers" + f.Name, KeyType: nftables.MustConcatSetType(nftables.TypeNFProto, f.Addr), Concatenation: true, Interval: true,
			},
			&nftables.Set{Name: "own" + f.Name, KeyType: f.Addr},
			&nftables.Set{Name: "source" + f.Name, KeyType: nftables.TypeNFProto, DataType: f.Addr, IsMap: true})
	}
	return all
}

// Chains implements nftable.Layout.
func (r *rules) Chains() []nftable.Chain {
	input := nftable.Chain{
		Name: "input", Hook: nftables.ChainHookInput, Kind: nftables.ChainTypeFilter, Priority: *nftables.ChainPriorityRaw,
	}
	prerouting := nftable.Chain{
		Name: "prerouting", Hook: nftables.ChainHookPrerouting, Kind: nftables.ChainTypeFilter, Priority: *nftables.ChainPriorityRaw,
	}
	tunnelled := nftable.Chain{Name: "tunnelled"}
	forward := nftable.Chain{
		Name: "forward", Hook: nftables.ChainHookForward, Kind: nftables.ChainTypeFilter, Priority: *nftables.ChainPriorityMangle,
	}
	if r.Encryption == nil {
		input.Rules = append(input.Rules, nftable.Rule(r.isTunnelled(), translated(), nftable.Drop))
		forward.Rules = append(forward.Rules, nftable.Rule(r.isTunnelled(), nftable.Goto(smuggled)))
	}
	for _, f := range nftable.Families {
		peers := nftable.Within(0, "peers"+f.Name)
		tunnelled.Rules = append(tunnelled.Rules,
			nftable.Rule(f.Is(), nftable.LoadMeta(expr.MetaKeyNFPROTO, 0), f.Source(1), peers, nftable.Pass))
		if r.Encryption != nil {
			input.Rules = append(input.Rules, nftable.Rule(f.Is(), r.isTunnelled(), nftable.Drop))
			continue
		}
		nodes := nftable.Without(0, "nodes"+f.Name)
		input.Rules = append(input.Rules, nftable.Rule(f.Is(), r.isTunnelled(), f.Source(0), nodes, nftable.Drop))
		tunnelled.Rules = append(tunnelled.Rules, nftable.Rule(f.Is(), f.Source(0), nftable.Within(0, "nodes"+f.Name), nftable.Pass))
	}
	tunnelled.Rules = append(tunnelled.Rules, nftable.Drop)
	for _, u := range r.tunnels() {
		in, out := device(expr.MetaKeyIIFNAME, DeviceOf(r.Cluster, u)), device(expr.MetaKeyOIFNAME, DeviceOf(r.Cluster, u))
		prerouting.Rules = append(prerouting.Rules, nftable.Rule(in, nftable.Goto(tunnelled.Name)))
		forward.Rules = append(forward.Rules, nftable.Rule(in, clampSegments()), nftable.Rule(out, clampSegments()))
	}
	if r.Encryption != nil {
		for _, f := range nftable.Families {
			prerouting.Rules = append(prerouting.Rules, nftable.Rule(
				f.Is(), nftable.LoadMeta(expr.MetaKeyNFPROTO, 0), f.Source(1), nftable.Within(0, "peers"+f.Name), nftable.Drop))
		}
	}
	chains := []nftable.Chain{tunnelled, input, prerouting, forward, r.postrouting()}
	if r.Encryption == nil {
		chains = append([]nftable.Chain{r.smuggled()}, chains...)
	}
	return chains
}

const smuggled = "smuggled"

// smuggled drops tunnelled packets that this node would forward for others than nodes.
func (r *rules) smuggled() nftable.Chain {
	c := nftable.Chain{Name: smuggled, Rules: [][]expr.Any{nftable.Rule(translated(), nftable.Drop)}}
	for _, f := range nftable.Families {
		c.Rules = append(c.Rules, nftable.Rule(
			f.Is(), f.Target(0), nftable.Within(0, "nodes"+f.Name), f.Source(0), nftable.Without(0, "nodes"+f.Name), nftable.Drop))
	}
	for _, own := range r.Node.Ranges {
		f := familyOf(own.Addr())
		c.Rules = append(c.Rules, nftable.Rule(
			f.Is(), f.Inside(f.Src, own), f.Outside(f.Dst, own),
			nftable.LoadMeta(expr.MetaKeyNFPROTO, 0), f.Target(1), nftable.Without(0, "peers"+f.Name), nftable.Drop))
	}
	return c
}

// postrouting chooses the sources of connections to other nodes' pods, also to those on their
// nodes' networks.
func (r *rules) postrouting() nftable.Chain {
	c := nftable.Chain{
		Name: "postrouting", Hook: nftables.ChainHookPostrouting, Kind: nftables.ChainTypeNAT, Priority: *nftables.ChainPriorityNATSource - 2,
	}
	toPeers := func(f *nftable.Family) []expr.Any {
		return nftable.Rule(nftable.LoadMeta(expr.MetaKeyNFPROTO, 0), f.Target(1), nftable.Within(0, "peers"+f.Name))
	}
	for _, own := range r.Node.Ranges {
		f := familyOf(own.Addr())
		c.Rules = append(c.Rules, nftable.Rule(
			f.Is(), f.Inside(f.Src, own), toPeers(f),
			f.Source(0), []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0)}}))
	}
	for _, u := range r.tunnels() {
		out := device(expr.MetaKeyOIFNAME, DeviceOf(r.Cluster, u))
		for _, own := range r.Node.Ranges {
			f := familyOf(own.Addr())
			c.Rules = append(c.Rules,
				nftable.Rule(out, f.Is(), f.Inside(f.Src, own), nftable.Pass),
				nftable.Rule(out, f.Is(), []expr.Any{&expr.Immediate{Register: nftable.Reg(0), Data: End(own).AsSlice()}}, another(f)))
		}
	}
	for _, f := range nftable.Families {
		toNodes := nftable.Rule(f.Target(0), nftable.Within(0, "nodes"+f.Name), translated())
		for _, to := range [][]expr.Any{toPeers(f), toNodes} {
			c.Rules = append(c.Rules, nftable.Rule(
				f.Is(), to, f.Source(0), nftable.Without(0, "own"+f.Name), nftable.FromNode(),
				nftable.LoadMeta(expr.MetaKeyNFPROTO, 0), nftable.Lookup(0, 0, "source"+f.Name), another(f)))
		}
	}
	return c
}

// translated matches packets of a connection whose target was changed, as for a Service.
func translated() []expr.Any {
	const dstNAT = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)
	return nftable.CtBits(expr.CtKeySTATUS, dstNAT, expr.CmpOpNeq)
}

// another gives a connection the source in the register, with a random port: that of the client may
// be in use there.
func another(f *nftable.Family) []expr.Any {
	return []expr.Any{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0), FullyRandom: true}}
}

// tunnels are the devices that packets of other nodes' pods may come from.
func (r *rules) tunnels() []Underlay {
	if r.Encryption != nil {
		return []Underlay{Encrypted}
	}
	return []Underlay{IPv4, IPv6}
}

// isTunnelled matches packets of the cluster's VXLAN network (RFC 7348, 5). Others may use the port
// with other networks.
func (r *rules) isTunnelled() []expr.Any {
	port := binary.BigEndian.AppendUint16(nil, uint16(r.Port))
	vni := binary.BigEndian.AppendUint32(nil, uint32(r.VNI))[1:]
	return nftable.Rule(nftable.IsProtocol(unix.IPPROTO_UDP), []expr.Any{
		&expr.Payload{DestRegister: nftable.Reg(0), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: port},
		&expr.Payload{DestRegister: nftable.Reg(0), Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: vni},
	})
}

func device(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: nftable.Reg(0)}, &expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: padded}}
}

// clampSegments has the ends of a TCP connection send packets that fit the tunnel from the start,
// so that none waits for an error of ICMP, which some firewalls drop.
func clampSegments() []expr.Any {
	const flagsAt, syn, rst, maxseg = 13, 0x02, 0x04, 2
	return nftable.Rule(nftable.IsProtocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: nftable.Reg(0), Base: expr.PayloadBaseTransportHeader, Offset: flagsAt, Len: 1},
		&expr.Bitwise{SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Len: 1, Mask: []byte{syn | rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: []byte{syn}},
		&expr.Rt{Key: expr.RtTCPMSS, Register: nftable.Reg(0)},
		&expr.Byteorder{SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: nftable.Reg(0), Type: maxseg, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	})
}
