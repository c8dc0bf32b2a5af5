package announce

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
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
const early = nftables.ChainPriority(-10)

// answerLimit bounds the wait for the kernel's answers. To some errors it gives fewer than the
// nftables package waits for.
const answerLimit = 5 * time.Second

// refusal is what the table holds.
type refusal struct{ sink string }

// Sets implements nftable.Layout, as do the others.
func (refusal) Sets() []*nftables.Set { return nil }

func (refusal) Elements() iter.Seq[nftable.Element] { return slices.Values[[]nftable.Element](nil) }

func (r refusal) Chains() []nftable.Chain {
	const translated = 1 << 5 // IPS_DST_NAT
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, r.sink)
	lost := nftable.Rule(
		// At output, a packet that was translated still shows the interface that it was to leave by
		// before.
		nftable.LoadMeta(expr.MetaKeyOIFNAME, 0),
		[]expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: nftable.Reg(0), Data: name}},
		nftable.CtBits(expr.CtKeySTATUS, translated, expr.CmpOpEq),
		nftable.Goto("refuse"))
	all := []nftable.Chain{{Name: "refuse", Rules: [][]expr.Any{
		nftable.Rule(nftable.IsProtocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}},
	}}}
	// Always in this order, so that a table that was made again is listed as it was before.
	for _, c := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"forward", nftables.ChainHookForward}, {"output", nftables.ChainHookOutput}} {
		all = append(all, nftable.Chain{
			Name: c.name, Hook: c.hook, Kind: nftables.ChainTypeFilter, Priority: early, Rules: [][]expr.Any{lost},
		})
	}
	return all
}

// refuse has the kernel keep the table, and this process hear if another program removes it.
// Addresses are of use without it, so a failure is only logged. It returns when it is to be called
// again.
func (a *Announcer) refuse(ctx context.Context) (next time.Duration) {
	if a.refusal != nil {
		return forever
	}
	if wait := time.Until(a.reopen); wait > 0 { // each change of an interface calls it
		return wait
	}
	t, err := openTable(a.sink, refusal{a.sink}, a.log)
	if err == nil {
		if err = t.Apply(ctx, t.Batch()); err == nil {
			a.refusal = t
			return forever
		}
		err = errors.Join(err, t.Close())
	}
	a.notRefused(err)
	return again
}

// openTable is replaced by tests.
var openTable = nftable.Open

// notRefused says that there is no table, which is tried again after a pause.
func (a *Announcer) notRefused(err error) {
	a.reopen = time.Now().Add(again)
	if time.Since(a.saidRefusal) > quiet {
		a.saidRefusal = time.Now()
		a.log.Warn("ports that Services do not have are silent, and not refused", "table", a.sink, "err", err, "again", again)
	}
}

// refusalChanged gets a value when another program has changed the table.
func (a *Announcer) refusalChanged() <-chan struct{} {
	if a.refusal == nil {
		return nil
	}
	return a.refusal.Changed()
}

// repairRefusal brings the table back.
func (a *Announcer) repairRefusal(ctx context.Context) {
	differed, err := a.refusal.Repair(ctx)
	if differed && err == nil && time.Since(a.saidRepaired) > quiet {
		a.saidRepaired = time.Now()
		a.log.Warn("another program changed the nftables table that refuses ports that Services do not have", "table", a.sink)
	}
	if err != nil {
		a.leaveRefusal()
		a.notRefused(err)
		a.signal() // the next look at the addresses sees to it that it is opened again
	}
}

// leaveRefusal ends the watch. The table stays.
func (a *Announcer) leaveRefusal() {
	if a.refusal == nil {
		return
	}
	if err := a.refusal.Close(); err != nil {
		a.log.Warn("an nftables table is watched no more", "table", a.sink, "err", err)
	}
	a.refusal = nil
}

// removeRefusal removes the table, if there is one.
func removeRefusal(sink string) error {
	c, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(time.Now().Add(answerLimit)) }))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
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
