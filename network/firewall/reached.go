package firewall

import (
	"bytes"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// reachedName is the name of the set of links, and of the chain that fills it.
const reachedName = "reached"

// beforeSources is before all chains that choose sources: a packet that has got one goes through no
// more of them.
const beforeSources = 90

// addReached has the kernel note by which links connections to pods are made. A nat chain sees only
// the first packet of each.
func (f *Table) addReached(c *nftables.Conn, t *nftables.Table) {
	chain := c.AddChain(&nftables.Chain{
		Table: t, Name: reachedName, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityRef(beforeSources),
	})
	s := f.reached()
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: rule(f.inGroup(expr.MetaKeyOIFGROUP, expr.CmpOpEq), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1},
		&expr.Dynset{SrcRegKey: reg1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_ADD},
	})})
}

func (f *Table) reached() *nftables.Set {
	return &nftables.Set{Table: f.table(), Name: reachedName, ID: 7, KeyType: nftables.TypeIFName, Dynamic: true}
}

// Reached returns the links by which connections to pods were made, and those that pods had when
// the table was made again.
func (f *Table) Reached() (map[string]bool, error) {
	links := map[string]bool{}
	err := f.transaction(func(c *nftables.Conn) error {
		elements, err := c.GetSetElements(f.reached())
		for _, e := range elements {
			links[string(bytes.TrimRight(e.Key, "\x00"))] = true
		}
		return err
	})
	return links, err
}

// DropReached forgets links that Reached returns. It ignores what is not there.
func (f *Table) DropReached(links []string) error {
	return f.drop(map[string][]nftables.SetElement{reachedName: nameElements(links)})
}
