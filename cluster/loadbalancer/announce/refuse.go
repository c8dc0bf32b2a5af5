package announce

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The nftables table of the sink's name refuses what would end in the sink, since no rule has
// translated it: a port that a Service does not have, or a Service whose rules are not in force
// yet. A client then knows at once. Were the packet dropped in the sink, connection tracking would
// have taken note of it, and later packets with the same ports would not be translated, either.
//
//	table inet coracle-lb6443 {
//	  chain refuse {
//	    meta l4proto tcp reject with tcp reset
//	    reject with icmpx port-unreachable }
//	  chain forward { type filter hook forward priority -10;
//	    oifname "coracle-lb6443" ct status & dnat == 0 goto refuse }
//	  chain output { type filter hook output priority -10;
//	    oifname "coracle-lb6443" ct status & dnat == 0 goto refuse } }

// early is the chains' priority: what goes nowhere is no concern of network policies.
var early = nftables.ChainPriorityRef(-10)

// answerLimit bounds the wait for the kernel's answers. To some errors it gives fewer than the
// nftables package waits for.
const answerLimit = 5 * time.Second

func dialTables() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(time.Now().Add(answerLimit)) }))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// ensureRefusal makes the table unless it is there.
func ensureRefusal(sink string) error {
	c, err := dialTables()
	if err != nil {
		return err
	}
	if _, err := c.ListTableOfFamily(sink, nftables.TableFamilyINet); err == nil {
		return nil
	}
	table := c.AddTable(&nftables.Table{Name: sink, Family: nftables.TableFamilyINet})
	refuse := c.AddChain(&nftables.Chain{Name: "refuse", Table: table})
	c.AddRule(&nftables.Rule{Table: table, Chain: refuse, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	}})
	c.AddRule(&nftables.Rule{Table: table, Chain: refuse, Exprs: []expr.Any{
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
	}})
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, sink)
	const translated = 1 << 5 // IPS_DST_NAT
	for chain, hook := range map[string]*nftables.ChainHook{"forward": nftables.ChainHookForward, "output": nftables.ChainHookOutput} {
		// At output, a packet that was translated still shows the interface that it was to leave by
		// before.
		c.AddRule(&nftables.Rule{
			Table: table,
			Chain: c.AddChain(&nftables.Chain{Name: chain, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: early}),
			Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
				&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
				&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(translated), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
				&expr.Verdict{Kind: expr.VerdictGoto, Chain: "refuse"},
			},
		})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", sink, err)
	}
	return nil
}

// removeRefusal removes the table, if there is one.
func removeRefusal(sink string) error {
	c, err := dialTables()
	if err != nil {
		return err
	}
	table, err := c.ListTableOfFamily(sink, nftables.TableFamilyINet)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil // there is none, or no nftables at all
	}
	if err != nil {
		return fmt.Errorf("find nftables table %s: %w", sink, err)
	}
	c.DelTable(table)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", sink, err)
	}
	return nil
}
