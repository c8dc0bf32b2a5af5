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
func nftable.Reg(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// rule joins expressions.
func nftable.Rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var (
	drop = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	pass = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}

	isNotTranslated = nftable.CtBits(expr.CtKeySTATUS, ctDNAT, expr.CmpOpEq)
)

func jumpTo(name string, kind expr.VerdictKind) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: name}}
}

func nftable.Jump(name string) []expr.Any { return jumpTo(name, expr.VerdictJump) }

// is matches packets of the family.
func (f *family) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: nftable.Reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: []byte{f.Protocol}},
	}
}

func nftable.IsProtocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: nftable.Reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: []byte{p}},
	}
}

// header loads an address of the packet.
func (f *family) header(offset, to uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: to, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Size}}
}

func (f *family) source(to uint32) []expr.Any { return f.header(f.Src, to) }

func (f *family) target(to uint32) []expr.Any { return f.header(f.Dst, to) }

// protocolPort loads protocol and destination port into registers n and n+1.
func nftable.ProtocolPort(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: nftable.Reg(n)},
		&expr.Payload{DestRegister: nftable.Reg(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// service loads destination address, protocol and port.
func (f *family) service() []expr.Any { return nftable.Rule(f.Target(0), nftable.ProtocolPort(f.Words())) }

// compare compares an address of the packet with a network.
func (f *family) compare(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return nftable.Rule(f.header(offset, nftable.Reg(0)), []expr.Any{
		&expr.Bitwise{
			SourceRegister: nftable.Reg(0), DestRegister: nftable.Reg(0), Len: f.Size,
			Mask: net.CIDRMask(p.Bits(), int(f.Size)*8), Xor: make([]byte, f.Size),
		},
		&expr.Cmp{Op: op, Register: nftable.Reg(0), Data: p.Masked().Addr().AsSlice()},
	})
}

func (f *family) inside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpEq)
}

func (f *family) outside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpNeq)
}

// within matches if a set has what is in the registers.
func nftable.Within(from uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, SetName: set}}
}

// lookup loads what a map has, and ends the rule if it has nothing.
func nftable.Lookup(from, to uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: set}}
}

// slot loads the backend's number and a random slot, as the maps of endpoints have them.
func (f *family) slot(modulus int) []expr.Any {
	return nftable.Rule(loadChoice(nftable.Reg(0), markNumber), []expr.Any{
		&expr.Numgen{Register: nftable.Reg(1), Modulus: uint32(modulus), Type: unix.NFT_NG_RANDOM},
	})
}

// translate sends the packet to the address and port in the registers.
func (f *family) translate() []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0), RegProtoMin: nftable.Reg(f.Words()),
	}}
}

func mask32(register, bits, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: []byte(nftable.Native(bits)), Xor: []byte(nftable.Native(xor))}
}

func loadMark(register, bits uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: register}, mask32(register, bits, 0)}
}

// setMark sets a bit of the mark.
func setMark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nftable.Reg(0)}, mask32(nftable.Reg(0), ^bit, bit),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: nftable.Reg(0), SourceRegister: true},
	}
}

// ctBits compares bits of the connection with none.
func nftable.CtBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: nftable.Reg(0)}, mask32(nftable.Reg(0), bits, 0),
		&expr.Cmp{Op: op, Register: nftable.Reg(0), Data: make([]byte, 4)},
	}
}

// notLocal matches destinations that the node does not have itself, fromNode sources that it has.
func notLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: nftable.Reg(0), FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: nftable.Reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

func fromNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: nftable.Reg(0), FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}
