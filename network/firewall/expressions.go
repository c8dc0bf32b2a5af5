package firewall

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The first registers. A concatenation is made in adjacent ones: reg32(n) is the
// n-th of 4 bytes, and reg1 to reg4 are the same memory by 16 bytes.
const reg1 = uint32(unix.NFT_REG_1)

func reg32(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// Family is IPv4 or IPv6, and how its packets look in rules.
type Family struct {
	proto    byte
	bits     int
	src, dst uint32 // offsets in the header
	suffix   string
}

// IPv4 and IPv6 are the families that pods have addresses of.
var (
	IPv4 = Family{proto: unix.NFPROTO_IPV4, bits: 32, src: 12, dst: 16, suffix: "4"}
	IPv6 = Family{proto: unix.NFPROTO_IPV6, bits: 128, src: 8, dst: 24, suffix: "6"}
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Suffix is "4" or "6", as at the end of the sets' names.
func (f Family) Suffix() string { return f.suffix }

// words is the number of 4-byte registers that an address fills.
func (f Family) words() uint32 { return uint32(f.bits / 32) }

func (f Family) is() []expr.Any { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, f.proto) }

// within matches the address at an offset of the header against a prefix.
func (f Family) within(offset uint32, p netip.Prefix) []expr.Any {
	n := uint32(f.bits / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: n, Mask: net.CIDRMask(p.Bits(), f.bits), Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: p.Masked().Addr().AsSlice()},
	}
}

// inGroup compares the group of a link.
func (f *Table) inGroup(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return meta(key, op, binary.NativeEndian.AppendUint32(nil, f.pods)...)
}

// meta compares what is known of a packet next to its bytes.
func meta(key expr.MetaKey, op expr.CmpOp, want ...byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: op, Register: reg1, Data: want}}
}

func rule(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

var (
	loopback4  = netip.MustParsePrefix("127.0.0.0/8")
	linkLocal6 = netip.MustParsePrefix("fe80::/10")
)

var (
	drop = verdict(expr.VerdictDrop)
	pass = verdict(expr.VerdictReturn)
)

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// payload matches bytes of a header.
func payload(base expr.PayloadBase, offset uint32, want ...byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: base, Offset: offset, Len: uint32(len(want))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: want},
	}
}

const ctDNAT = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)

// ctBits matches a connection that has one of the bits.
func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}
