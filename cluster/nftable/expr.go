package nftable

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Family is IPv4 or IPv6.
type Family struct {
	Index    int
	Name     string // "4" or "6"
	Protocol byte   // NFPROTO_
	Size     uint32 // of an address
	Src, Dst uint32 // offsets in the header
	Addr     nftables.SetDatatype
	Loopback netip.Prefix
}

// Families are IPv4 and IPv6.
var Families = [2]*Family{
	{0, "4", unix.NFPROTO_IPV4, 4, 12, 16, nftables.TypeIPAddr, netip.MustParsePrefix("127.0.0.0/8")},
	{1, "6", unix.NFPROTO_IPV6, 16, 8, 24, nftables.TypeIP6Addr, netip.MustParsePrefix("::1/128")},
}

// Words is the number of registers of four bytes that an address fills.
func (f *Family) Words() uint32 { return f.Size / 4 }

// Reg is the n-th register of four bytes. A concatenation is made in adjacent ones. The functions
// below take n.
func Reg(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// Rule joins expressions.
func Rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// Verdicts that need no chain. Pass returns to the chain that jumped to this one.
var (
	Accept = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	Drop   = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	Pass   = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
)

// Jump goes to a chain that comes back here, unless it decides.
func Jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// Goto goes to a chain that comes back to where this one was jumped to from.
func Goto(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

// Is matches packets of the family.
func (f *Family) Is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: Reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: Reg(0), Data: []byte{f.Protocol}},
	}
}

// IsProtocol matches packets of a protocol such as unix.IPPROTO_TCP.
func IsProtocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: Reg(0), Data: []byte{p}},
	}
}

// Header loads an address of the packet: f.Src or f.Dst.
func (f *Family) Header(offset, to uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: Reg(to), Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Size}}
}

// Source loads the source address.
func (f *Family) Source(to uint32) []expr.Any { return f.Header(f.Src, to) }

// Target loads the destination address.
func (f *Family) Target(to uint32) []expr.Any { return f.Header(f.Dst, to) }

// ProtocolPort loads protocol and destination port into registers n and n+1.
func ProtocolPort(n uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: Reg(n)},
		&expr.Payload{DestRegister: Reg(n + 1), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// Inside matches packets with the address at the offset in a network.
func (f *Family) Inside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpEq)
}

// Outside is the opposite of Inside.
func (f *Family) Outside(offset uint32, p netip.Prefix) []expr.Any {
	return f.compare(offset, p, expr.CmpOpNeq)
}

func (f *Family) compare(offset uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return Rule(f.Header(offset, 0), []expr.Any{
		&expr.Bitwise{
			SourceRegister: Reg(0), DestRegister: Reg(0), Len: f.Size,
			Mask: net.CIDRMask(p.Bits(), int(f.Size)*8), Xor: make([]byte, f.Size),
		},
		&expr.Cmp{Op: op, Register: Reg(0), Data: p.Masked().Addr().AsSlice()},
	})
}

// FromNode matches packets with a source that the machine itself has.
func FromNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: Reg(0), FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: Reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}

// Within matches if a set has what is in the registers.
func Within(from uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: Reg(from), SetName: set}}
}

// Without is the opposite of Within.
func Without(from uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: Reg(from), SetName: set, Invert: true}}
}

// Lookup loads what a map has, and ends the rule if it has nothing.
func Lookup(from, to uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: Reg(from), DestRegister: Reg(to), IsDestRegSet: true, SetName: set}}
}

// Decide follows what a map of verdicts has, and ends the rule if it has nothing.
func Decide(from uint32, set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: Reg(from), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set}}
}

// Constant loads a value.
func Constant(to, v uint32) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: Reg(to), Data: []byte(Native(v))}}
}

// Mask keeps some bits of a register and flips others.
func Mask(register, bits, flip uint32) []expr.Any {
	return []expr.Any{&expr.Bitwise{
		SourceRegister: Reg(register), DestRegister: Reg(register), Len: 4, Mask: []byte(Native(bits)), Xor: []byte(Native(flip)),
	}}
}

// Compare compares a register with a value.
func Compare(op expr.CmpOp, register, v uint32) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: op, Register: Reg(register), Data: []byte(Native(v))}}
}

// LoadMeta loads four bytes that the kernel keeps with the packet.
func LoadMeta(key expr.MetaKey, to uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: Reg(to)}}
}

// SetMeta stores what LoadMeta loads.
func SetMeta(key expr.MetaKey, from uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: Reg(from), SourceRegister: true}}
}

// CtBits compares bits of the connection with none.
func CtBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return Rule([]expr.Any{&expr.Ct{Key: key, Register: Reg(0)}}, Mask(0, bits, 0), Compare(op, 0, 0))
}
