package doctor

import (
	"bytes"
	"encoding/binary"
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
	services    []nodeService // that pods reach at the node
}

// families are those that pods have, or may have, false for IPv4.
func (w firewalled) families() (all []bool) {
	for _, ipv6 := range []bool{false, true} {
		if len(w.ranges) == 0 || w.rangeOf(ipv6).IsValid() {
			all = append(all, ipv6)
		}
	}
	return all
}

// has says whether it is known that pods have addresses of a family: their range, or what the
// cluster serves them there.
func (w firewalled) has(ipv6 bool) bool {
	return w.rangeOf(ipv6).IsValid() || slices.ContainsFunc(w.services, func(s nodeService) bool { return s.at.Addr().Is6() == ipv6 })
}

func (w firewalled) rangeOf(ipv6 bool) netip.Prefix {
	i := slices.IndexFunc(w.ranges, func(p netip.Prefix) bool { return p.Addr().Is6() == ipv6 })
	if i < 0 {
		return netip.Prefix{}
	}
	return w.ranges[i]
}

// dropped is what a chain drops of packets, by what they are for. Where a rule that accepts one has
// conditions that cannot be told here, one that names a range of the pods counts as accepting: its
// author knows of them. So does each if the ranges are not known.
func (w firewalled) dropped(packets []aimed, drops func(packet) (drops, sure bool), named func() bool) (what []string) {
	var certain []string
	for _, p := range packets {
		drops, sure := drops(p.packet)
		if drops {
			what = append(what, p.what)
		}
		if drops && sure {
			certain = append(certain, p.what)
		}
	}
	if len(what) > len(certain) && (len(w.ranges) == 0 || named()) {
		return certain
	}
	return what
}

// found adds a chain that drops something, by family, to those that do.
func (w firewalled) found(all []Firewall, f Firewall, dropped map[bool][]string) []Firewall {
	four, six := dropped[false], dropped[true]
	switch {
	case len(four)+len(six) == 0:
		return all
	case len(four) > 0 && len(six) > 0:
	case len(four) > 0 && !w.has(false):
		f.Family = "IPv4"
	case len(six) > 0 && !w.has(true):
		f.Family = "IPv6"
	}
	var what []string
	for _, each := range slices.Concat(four, six) {
		if !slices.Contains(what, each) {
			what = append(what, each)
		}
	}
	f.Keeps = strings.Join(what, ", ")
	return append(all, f)
}

// readNFTables finds chains that drop what the node forwards for its pods or gets from them, and
// the node ports of Services. Packets as pods send them are followed through the rules of each
// chain of the hooks forward and input: one that drops them is enough, whatever the others do and
// in which order.
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
		if t.Name == w.own || strings.HasPrefix(t.Name, "coracle") || chain.Hooknum == nil {
			continue
		}
		input := *chain.Hooknum == *nftables.ChainHookInput
		if !input && *chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		rules := newRuleset(c, t)
		dropped := map[bool][]string{}
		for _, ipv6 := range w.families() {
			if meets(t, ipv6) {
				visited := map[string]bool{}
				dropped[ipv6] = w.dropped(w.packets(input, ipv6),
					func(p packet) (drops, sure bool) { return rules.drops(chain, p, visited) },
					func() bool { return len(rules.unread) > 0 || rules.names(w.ranges, visited) })
			}
		}
		manager := managerOf(t, chains)
		if input && manager == "docker" { // which has no rules there
			manager = "iptables"
		}
		found = w.found(found, Firewall{Manager: manager, Table: familyName(t.Family) + " " + t.Name, Chain: chain.Name}, dropped)
		unread = append(unread, rules.unread...)
	}
	ports, err = readNodePorts(c)
	return found, ports, errors.Join(append(unread, err)...)
}

// packets are those of a family that must pass the hook input, or forward.
func (w firewalled) packets(input, ipv6 bool) []aimed {
	if input {
		return delivered(w.rangeOf(ipv6), ipv6, w.pod, w.services)
	}
	return forwarded(w.rangeOf(ipv6), ipv6, w.pod, w.uplink)
}

// readServices finds the cluster's API server and DNS by the tables that rename their ports, which
// cluster/nodeaddr makes. It returns none if nftables cannot be read: readNFTables says so.
func readServices() (all []nodeService) {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil
	}
	for _, chain := range chains {
		name, ours := strings.CutPrefix(chain.Table.Name, "coracle-addr-")
		at := strings.LastIndex(name, "-")
		if !ours || at < 0 {
			continue
		}
		addr, err := netip.ParseAddr(strings.ReplaceAll(name[:at], "-", ":"))
		if err != nil {
			continue // the table of another address's guard
		}
		s := nodeService{at: netip.AddrPortFrom(addr, 0)}
		switch port := name[at+1:]; {
		case port == "443" && chain.Name == "prerouting":
			s.name = "the cluster's API server"
		case port == "53" && chain.Name == "arriving":
			s.name, s.dns = "the cluster's DNS", true
		default:
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			continue // it has just gone
		}
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if to, ok := e.(*expr.Immediate); ok && len(to.Data) == 2 {
					s.at = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(to.Data))
				}
			}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b nodeService) int { return strings.Compare(a.name, b.name) })
	return all
}

// meets says whether a table sees packets of a family that the node forwards.
func meets(t *nftables.Table, ipv6 bool) bool {
	return t.Family == nftables.TableFamilyINet || t.Family == nftables.TableFamilyIPv4 && !ipv6 || t.Family == nftables.TableFamilyIPv6 &&
		ipv6
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

// names says whether a rule of some chains compares with one of the ranges.
func (r *ruleset) names(ranges []netip.Prefix, chains map[string]bool) bool {
	for chain := range chains {
		for _, rule := range r.rulesOf(chain) {
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
