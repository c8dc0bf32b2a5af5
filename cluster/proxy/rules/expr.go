package rules

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
)

const (
	opDelete   = 2      // NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h)
	ctDNAT     = 1 << 5 // IPS_DST_NAT (linux/netfilter/nf_conntrack_common.h)
	ctOriginal = 0      // IP_CT_DIR_ORIGINAL (linux/netfilter/nf_conntrack_tuple_common.h)
)

var isNotTranslated = nftable.CtBits(expr.CtKeySTATUS, ctDNAT, expr.CmpOpEq)

// service loads destination address, protocol and port.
func (f *family) service() []expr.Any {
	return nftable.Rule(f.Target(0), nftable.ProtocolPort(f.Words()))
}

// slot loads the backend's number and a random slot, as the maps of endpoints have them.
func (f *family) slot(modulus int) []expr.Any {
	return nftable.Rule(loadChoice(0, markNumber), []expr.Any{
		&expr.Numgen{Register: nftable.Reg(1), Modulus: uint32(modulus), Type: unix.NFT_NG_RANDOM},
	})
}

// translate sends the packet to the address and port in the registers.
func (f *family) translate() []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.Protocol), RegAddrMin: nftable.Reg(0), RegProtoMin: nftable.Reg(f.Words()),
	}}
}

func loadMark(register, bits uint32) []expr.Any {
	return nftable.Rule(nftable.LoadMeta(expr.MetaKeyMARK, register), nftable.Mask(register, bits, 0))
}

// setMark sets a bit of the mark.
func setMark(bit uint32) []expr.Any {
	return nftable.Rule(nftable.LoadMeta(expr.MetaKeyMARK, 0), nftable.Mask(0, ^bit, bit), nftable.SetMeta(expr.MetaKeyMARK, 0))
}

// notLocal matches destinations that the node does not have itself.
func notLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: nftable.Reg(0), FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: nftable.Reg(0), Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}
}
