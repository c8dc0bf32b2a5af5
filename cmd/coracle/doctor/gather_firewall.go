package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewalled is what is asked of firewalls: whether they let a node's pods through.
type firewalled struct {
	ranges      []netip.Prefix // pods', empty if they are not known
	own         string         // coracled's nftables table
	pod, uplink side
}

// families are those that pods have, false for IPv4: both if that is not known.
func (w firewalled) families() (all []bool) {
	for _, ipv6 := range []bool{false, true} {
		if len(w.ranges) == 0 || w.rangeOf(ipv6).IsValid() {
			all = append(all, ipv6)
		}
	}
	return all
}

func (w firewalled) rangeOf(ipv6 bool) netip.Prefix {
	i := slices.IndexFunc(w.ranges, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 })
	if i < 0 {
		return netip.Prefix{}
	}
	return w.ranges[i]
}

// readNFTables finds chains that drop what the node forwards for its pods, and the node ports of
// Services. Packets as pods send them are followed through the rules of each chain of the hook
// forward: one that drops them is enough, whatever the others do and in which order. Where a rule
// that accepts has conditions that cannot be told here, one that names a range of the pods counts
// as accepting: its author knows of them. So does each if the ranges are not known.
func readNFTables(w firewalled) (found []Firewall, ports []NodePort, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var unread []error
	for _, chain := range chains {
		t := chain.Table
		if t.Name == w.own || strings.HasPrefix(t.Name, "coracle") || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		rules := newRuleset(c, t, chains)
		for _, ipv6 := range w.families() {
			if !meets(t, ipv6) {
				continue
			}
			if drops, sure := rules.dropAny(chain, forwarded(w.rangeOf(ipv6), ipv6, w.pod, w.uplink)); drops && (sure || len(w.ranges) > 0 && !rules.names(w.ranges) && len(rules.unread) == 0) {
				found = append(found, Firewall{managerOf(t, chains), familyName(t.Family) + " " + t.Name, chain.Name})
				break
			}
		}
		unread = append(unread, rules.unread...)
	}
	ports, err = readNodePorts(c)
	return found, ports, errors.Join(append(unread, err)...)
}

// dropAny says whether a chain drops one of some packets, and whether that is sure of any.
func (r *ruleset) dropAny(chain *nftables.Chain, packets []packet) (drops, sure bool) {
	for _, p := range packets {
		d, s := r.drops(chain, p)
		drops, sure = drops || d, sure || d && s
	}
	return drops, sure
}

// meets says whether a table sees packets of a family that the node forwards.
func meets(t *nftables.Table, ipv6 bool) bool {
	return t.Family == nftables.TableFamilyINet || t.Family == nftables.TableFamilyIPv4 && !ipv6 || t.Family == nftables.TableFamilyIPv6 && ipv6
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyINet:
		return "inet"
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	}
	return ""
}

// managerOf tells by the chains of a table whose it is.
func managerOf(t *nftables.Table, all []*nftables.Chain) string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(all, func(c *nftables.Chain) bool {
			return c.Table.Name == t.Name && c.Table.Family == t.Family && strings.HasPrefix(c.Name, prefix)
		})
	}
	switch {
	case t.Name == "firewalld":
		return "firewalld"
	case has("ufw-") || has("ufw6-"):
		return "ufw"
	case has("DOCKER"):
		return "docker"
	}
	return ""
}

// names says whether a rule of the table compares with one of the ranges.
func (r *ruleset) names(ranges []netip.Prefix) bool {
	for _, chain := range r.chains {
		if chain.Table.Name != r.table.Name || chain.Table.Family != r.table.Family {
			continue
		}
		for _, rule := range r.rulesOf(chain.Name) {
			if slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool { return compares(e, ranges) }) {
				return true
			}
		}
	}
	return false
}

// compares says whether an expression compares an address with one of the ranges: with its bytes,
// or with those that its length needs.
func compares(e expr.Any, ranges []netip.Prefix) bool {
	cmp, ok := e.(*expr.Cmp)
	if !ok {
		return false
	}
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool {
		network := p.Masked().Addr().AsSlice()
		least := (p.Bits() + 7) / 8
		return least > 0 && len(cmp.Data) >= least && len(cmp.Data) <= len(network) && bytes.Equal(cmp.Data, network[:len(cmp.Data)])
	})
}

var protocolNames = map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp"}

// readNodePorts lists the node ports in the tables of our service proxy: cluster/proxy/rules has
// their layout.
func readNodePorts(c *nftables.Conn) (all []NodePort, err error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if !strings.HasPrefix(t.Name, "coracle-services") {
			continue
		}
		for _, name := range []string{"nodeport4", "nodeport6"} {
			set, err := c.GetSetByName(t, name)
			if err != nil {
				continue // no such map: the table is of another release, or has just gone
			}
			elements, err := c.GetSetElements(set)
			if err != nil {
				continue
			}
			for _, e := range elements { // l4proto . th dport, each in four bytes
				if len(e.Key) < 6 {
					continue
				}
				p := NodePort{protocolNames[e.Key[0]], uint16(e.Key[4])<<8 | uint16(e.Key[5])}
				if !slices.Contains(all, p) {
					all = append(all, p)
				}
			}
		}
	}
	return all, nil
}
