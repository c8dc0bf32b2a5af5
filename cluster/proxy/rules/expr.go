package rules

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	opDelete        = 2 // NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h)
	verdictRegister = unix.NFT_REG_VERDICT
	ctDNAT          = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)
	ctOriginal      = 0      // IP_CT_DIR_ORIGINAL (linux/netfilter/nf_conntrack_tuple_common.h)
)

// reg is the n-th register of four bytes. A concatenation is made in adjacent ones.
func reg(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// rule joins expressions.
func rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var (
	drop = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	pass = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}

	isNotTranslated = ctBits(expr.CtKeySTATUS, ctDNAT, expr.CmpOpEq)
)

func jumpTo(name string, kind expr.VerdictKind) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: name}}
}

func jump(name string) []expr.Any { return jumpTo(name, expr.VerdictJump) }

// is matches packets of the family.
func (f *family) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{f.protocol}},
	}
}

func isProtocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{p}},
	}
}

// header loads an address of the packet.
func (f *family) header(offset, to uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size}}
}

func (f *family) source(to uint32) []expr.Any { return f.header(f.src, to) }

func (f *family) target(to uint32) []expr.Any { return f.header(f.dst, to) }

// protocolPort loads protocol and destination port into registers n and n+1.
func protocolPort(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg(n)},
		&expr.Payload{DestRegister: reg(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// service loads destination address, protocol and port.
func (f *family) service() []expr.Any { return rule(f.target(reg(0)), protocolPort(f.words())) }

// compare compares an address of the packet with a network.
func (f *family) compare(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return rule(f.header(offset, reg(0)), []expr.Any{
		&expr.Bitwise{
			SourceRegister: reg(0), DestRegister: reg(0), Len: f.size,
			Mask: net.CIDRMask(p.Bits(), int(f.size)*8), Xor: make([]byte, f.size),
		},
		&expr.Cmp{Op: op, Register: reg(0), Data: p.Masked().Addr().AsSlice()},
	})
}

func (f *family) inside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpEq)
}

func (f *family) outside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpNeq)
}

// within matches if a set has what is in the registers.
func within(from uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, SetName: set}}
}

// lookup loads what a map has, and ends the rule if it has nothing.
func lookup(from, to uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: set}}
}

// slot loads the backend's number and a random slot, as the maps of endpoints have them.
func (f *family) slot(modulus int) []expr.Any {
	return rule(loadChoice(reg(0), markNumber), []expr.Any{
		&expr.Numgen{Register: reg(1), Modulus: uint32(modulus), Type: unix.NFT_NG_RANDOM},
	})
}

// translate sends the packet to the address and port in the registers.
func (f *family) translate() []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.protocol), RegAddrMin: reg(0), RegProtoMin: reg(f.words()),
	}}
}

func mask32(register, bits, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: []byte(native(bits)), Xor: []byte(native(xor))}
}

func loadMark(register, bits uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, mask32(register, bits, 0)}
}

// setMark sets a bit of the mark.
func setMark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0)}, mask32(reg(0), ^bit, bit),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg(0), SourceRegister: true},
	}
}

// ctBits compares bits of the connection with none.
func ctBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg(0)}, mask32(reg(0), bits, 0),
		&expr.Cmp{Op: op, Register: reg(0), Data: make([]byte, 4)},
	}
}

// notLocal matches destinations that the node does not have itself, fromNode sources that it has.
func notLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg(0), FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

func fromNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg(0), FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}
