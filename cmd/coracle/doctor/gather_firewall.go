package doctor

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// readNFTables finds chains that drop what the node forwards, and the node ports of Services. A
// table with a rule that names one of the pods' ranges lets them through: its author knows of them.
func readNFTables(ranges []netip.Prefix) (found []Firewall, ports []NodePort, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, nil, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, chain := range chains {
		if !meets(chain.Table, ranges) || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward {
			continue
		}
		manager := managerOf(chain.Table, chains)
		drops := chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop
		// firewalld's last rule rejects what no zone has accepted.
		if (drops || manager == "firewalld") && !namesRange(c, chain.Table, chains, ranges) {
			found = append(found, Firewall{manager, familyName(chain.Table.Family) + " " + chain.Table.Name, chain.Name})
		}
	}
	ports, err = readNodePorts(c)
	return found, ports, err
}

// meets says whether a table sees packets that the node forwards for its pods. Without ranges, pods may
// have addresses of both families.
func meets(t *nftables.Table, ranges []netip.Prefix) bool {
	switch t.Family {
	case nftables.TableFamilyINet:
		return true
	case nftables.TableFamilyIPv4:
		return len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().Is4() })
	case nftables.TableFamilyIPv6:
		return len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().Is6() })
	}
	return false
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

// namesRange says whether a rule of a table compares with one of the ranges.
func namesRange(c *nftables.Conn, t *nftables.Table, all []*nftables.Chain, ranges []netip.Prefix) bool {
	for _, chain := range all {
		if chain.Table.Name != t.Name || chain.Table.Family != t.Family {
			continue
		}
		rules, err := c.GetRules(t, chain)
		if err != nil {
			continue // it has just gone
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if compares(e, ranges) {
					return true
				}
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

// readLegacy reads the policy of FORWARD of iptables-legacy, which nftables does not show. The
// program is only executed where the kernel has its tables: it would make them.
func readLegacy(ctx context.Context, ranges []netip.Prefix) (found []Firewall, unread string) {
	for _, family := range []struct{ names, program, table string }{
		{"/proc/net/ip_tables_names", "iptables-legacy", "ip filter"},
		{"/proc/net/ip6_tables_names", "ip6tables-legacy", "ip6 filter"},
	} {
		names, err := os.ReadFile(family.names)
		if err != nil || !slices.Contains(strings.Fields(string(names)), "filter") {
			continue
		}
		program, err := exec.LookPath(family.program)
		if err != nil {
			unread = family.program + " is not installed"
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		out, err := exec.CommandContext(ctx, program, "-w", "1", "-S").Output()
		cancel()
		if err != nil {
			unread = fmt.Sprintf("%s -S: %v", family.program, err)
			continue
		}
		if manager, drops := judgeLegacy(string(out), ranges); drops {
			found = append(found, Firewall{manager, family.table, "FORWARD"})
		}
	}
	return found, unread
}

// judgeLegacy says whether the rules that iptables -S prints drop what is forwarded, and whose they
// are.
func judgeLegacy(rules string, ranges []netip.Prefix) (manager string, drops bool) {
	manager = "iptables-legacy"
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		switch {
		case line == "-P FORWARD DROP" || line == "-P FORWARD REJECT":
			drops = true
		case strings.HasPrefix(line, "-N ufw"):
			manager = "ufw"
		case strings.HasPrefix(line, "-N DOCKER") && manager != "ufw":
			manager = "docker"
		}
		for _, r := range ranges {
			if slices.Contains(strings.Fields(line), r.String()) {
				return "", false
			}
		}
	}
	return manager, drops
}
