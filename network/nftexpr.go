package network

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// drop ignores what is not there.
func (f *firewall) drop(p podEntry) error {
	elements := elementsOf([]podEntry{p})
	err := f.change(elements, (*nftables.Conn).SetDeleteElements)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	// A transaction with one unknown element does nothing at all: one by one.
	var errs []error
	for set, list := range elements {
		for _, e := range list {
			err := f.change(map[string][]nftables.SetElement{set: {e}}, (*nftables.Conn).SetDeleteElements)
			if !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// The first registers. A concatenation is made in adjacent ones: reg32(n) is the
// n-th of 4 bytes, and reg1 to reg4 are the same memory by 16 bytes.
const reg1 = uint32(unix.NFT_REG_1)

func reg32(n uint32) uint32 { return unix.NFT_REG32_00 + n }

// family describes how a protocol family looks in rules.
type family struct {
	proto    byte
	bits     int
	src, dst uint32 // offsets in the header
	suffix   string
}

var (
	ipv4 = family{proto: unix.NFPROTO_IPV4, bits: 32, src: 12, dst: 16, suffix: "4"}
	ipv6 = family{proto: unix.NFPROTO_IPV6, bits: 128, src: 8, dst: 24, suffix: "6"}
)

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// words is the number of 4-byte registers that an address fills.
func (f family) words() uint32 { return uint32(f.bits / 32) }

func (f family) is() []expr.Any { return meta(expr.MetaKeyNFPROTO, expr.CmpOpEq, f.proto) }

// within matches the address at an offset of the header against a prefix.
func (f family) within(offset uint32, p netip.Prefix) []expr.Any {
	n := uint32(f.bits / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: n},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: n, Mask: ipNet(p.Addr(), p.Bits()).Mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: p.Masked().Addr().AsSlice()},
	}
}

// group compares the group of a link.
func (f *firewall) group(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return meta(key, op, binary.NativeEndian.AppendUint32(nil, linkGroup(f.name))...)
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
