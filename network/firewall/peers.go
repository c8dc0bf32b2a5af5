package firewall

import (
	"net/netip"

	"github.com/google/nftables"

	"github.com/coracle-project/coracle/internal/netprefix"
)

// peers is the set of networks of other nodes and their pods.
func (f *Table) peers(fam Family) *nftables.Set {
	s := &nftables.Set{Table: f.table(), Name: "peers" + fam.suffix, ID: 20 + uint32(fam.proto), Interval: true, KeyType: nftables.TypeIPAddr}
	if fam == IPv6 {
		s.KeyType = nftables.TypeIP6Addr
	}
	return s
}

// peerElements are the networks of a family as the kernel has them: a beginning, and what is behind
// the end.
func peerElements(peers []netip.Prefix, fam Family) []nftables.SetElement {
	elements := []nftables.SetElement{}
	for _, p := range peers {
		if FamilyOf(p.Addr()) != fam {
			continue
		}
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		if behind := netprefix.Last(p).Next(); behind.IsValid() {
			elements = append(elements, nftables.SetElement{Key: behind.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// SetPeers changes the networks of other nodes and their pods.
func (f *Table) SetPeers(peers []netip.Prefix) error {
	return f.transaction(func(c *nftables.Conn) error {
		for _, fam := range []Family{IPv4, IPv6} {
			s := f.peers(fam)
			c.FlushSet(s)
			if err := inLists(c, s, peerElements(peers, fam), (*nftables.Conn).SetAddElements); err != nil {
				return err
			}
		}
		return nil
	})
}
