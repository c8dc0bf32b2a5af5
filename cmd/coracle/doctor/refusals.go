package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// Port is one of this node that other machines of the cluster need.
type Port struct {
	UDP    bool
	Number uint16
	For    string // what uses it
	// From is one of the machines that do.
	From netip.Addr
}

func (p Port) String() string {
	if p.UDP {
		return fmt.Sprintf("UDP port %d", p.Number)
	}
	return fmt.Sprintf("TCP port %d", p.Number)
}

// Refusal is a chain that drops what another machine sends to a port of this node.
type Refusal struct {
	Port
	Manager, Table, Chain string // see Firewall
}

// others returns one of the cluster's other machines, invalid if none is known.
func (p Places) others() netip.Addr {
	at := ""
	if server, err := url.Parse(p.Server); err == nil {
		at = server.Hostname()
	}
	for _, peer := range p.Peers {
		if host, _, err := net.SplitHostPort(peer.At); err == nil && at == "" {
			at = host
		}
	}
	addr, err := netip.ParseAddr(at)
	if err != nil { // a name would have to be resolved
		return netip.Addr{}
	}
	return addr.Unmap()
}

// layersPort is where nodes ask each other for layers of images (cluster/imagepeers).
const layersPort = 10266

// sharing adds the port for layers of images, if coracled passes them on.
func (p Places) sharing(c config.Config) Places {
	if c.Image.ShareBetweenNodes {
		p.Ports = append(slices.Clone(p.Ports), Port{Number: layersPort, For: "requests for layers of images"})
	}
	return p
}

// needed are the ports that other machines need, also for the tunnels.
func (p Places) needed(tunnels []Tunnel) (all []Port) {
	if from := p.others(); from.IsValid() {
		for _, port := range p.Ports {
			port.From = from
			all = append(all, port)
		}
	}
	for _, t := range tunnels {
		from := t.Node
		if !from.IsValid() {
			from = p.others()
		}
		if from.IsValid() {
			return append(all, Port{UDP: true, Number: t.port(), For: podsBetweenNodes, From: from})
		}
	}
	return all
}

// beforeJoin are the ports that other machines will need. The cluster's settings are not known yet,
// nor whether the nodes share a link.
func (p Places) beforeJoin() []Port {
	p.Ports = append(slices.Clone(p.Ports), Port{UDP: true, Number: vxlanPort, For: podsBetweenNodes + " on other links"})
	return p.needed(nil)
}

const podsBetweenNodes = "packets between pods of different nodes"

// readRefusals finds chains that drop what other machines need. A rule that accepts it under a
// condition that is not known here counts as accepting. An error is about what could not be read.
func readRefusals(ctx context.Context, own string, needed []Port) (all []Refusal, err error) {
	if len(needed) == 0 {
		return nil, nil
	}
	all, err = tableRefusals(own, needed)
	return append(legacyRefusals(ctx, needed), all...), err
}

// tableRefusals is readRefusals for chains of nftables.
func tableRefusals(own string, needed []Port) (all []Refusal, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var unread []error
	for _, chain := range chains {
		t := chain.Table
		if t.Name == own || strings.HasPrefix(t.Name, "coracle") || chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookInput {
			continue
		}
		rules := newRuleset(c, t)
		for _, port := range needed {
			p := port.packet()
			if !meets(t, p.ipv6) {
				continue
			}
			if drops, sure := rules.drops(chain, p, map[string]bool{}); drops && sure {
				manager := managerOf(t, chains)
				all = append(all, Refusal{port, manager, familyName(t.Family) + " " + t.Name, chain.Name})
			}
		}
		unread = append(unread, rules.unread...)
	}
	return all, errors.Join(unread...)
}

// legacyRefusals is readRefusals for chains of iptables-legacy. That some could not be read is told
// where those for pods are looked at.
func legacyRefusals(ctx context.Context, needed []Port) (all []Refusal) {
	tables, _ := readLegacyTables(ctx, []bool{false, true})
	for _, t := range tables {
		all = append(all, t.refuses(needed)...)
	}
	return all
}

func (t legacyTable) refuses(needed []Port) (all []Refusal) {
	const chain = "INPUT"
	for _, port := range needed {
		p := port.packet()
		if p.ipv6 != t.ipv6 {
			continue
		}
		if drops, sure := t.drops(chain, p, map[string]bool{}); drops && sure {
			all = append(all, Refusal{port, t.managerOf(chain), t.name(), chain})
		}
	}
	return all
}

// packet is the first one of another machine to the port.
func (p Port) packet() packet {
	return packet{
		in: arrivesBy(p.From), source: p.From, ipv6: p.From.Is6(), state: stateNew, udp: p.UDP, port: p.Number, local: true,
	}
}

// arrivesBy is the interface that packets of another machine come by: the one that leads there.
func arrivesBy(from netip.Addr) side {
	routes, err := netlink.RouteGet(from.AsSlice())
	if err != nil || len(routes) == 0 {
		return side{}
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return side{}
	}
	return side{name: l.Attrs().Name, index: l.Attrs().Index, group: &l.Attrs().Group}
}

func checkRefusals(f *Facts) (all []Finding) {
	for _, r := range f.Refusals {
		what := fmt.Sprintf("chain %s of table %s drops %s from other machines, such as %s, to this one: %s do not arrive", r.Chain, r.Table,
			r.Port, r.From, r.For)
		if r.Manager != "" {
			what = r.Manager + ": " + what
		}
		all = append(all, Finding{"ports", Warning, what, r.remedy()})
	}
	return all
}

func (r Refusal) remedy() string {
	protocol := "tcp"
	if r.UDP {
		protocol = "udp"
	}
	switch port := fmt.Sprintf("%d/%s", r.Number, protocol); r.Manager {
	case "firewalld":
		return "firewall-cmd --permanent --add-port=" + port + " && firewall-cmd --reload"
	case "ufw":
		return "ufw allow " + port
	}
	return fmt.Sprintf("accept %s from the cluster's machines in that chain", r.Port)
}
