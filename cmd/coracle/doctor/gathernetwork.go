package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
	"github.com/coracle-project/coracle/cmd/coracled/config"
)

func readNetwork(ctx context.Context, c *config.Network, builtin bool) Network {
	n := Network{MTU: c.MTU, Forwards4: true, Forwards6: true}
	var ranges []netip.Prefix
	if builtin {
		n.Subnets = c.Subnets
		for _, s := range c.Subnets {
			if p, err := netip.ParsePrefix(s); err == nil {
				ranges = append(ranges, p.Masked())
			}
		}
	}
	n.Forwards4 = setting("net/ipv4/ip_forward") != "0"
	n.Forwards6 = setting("net/ipv6/conf/all/forwarding") != "0"
	n.Bridged4 = setting("net/bridge/bridge-nf-call-iptables") == "1"
	n.Bridged6 = setting("net/bridge/bridge-nf-call-ip6tables") == "1"
	if exists("/proc/sys/net/netfilter/nf_conntrack_max") {
		n.Tracked, n.TrackedMax = number("/proc/sys/net/netfilter/nf_conntrack_count"), number("/proc/sys/net/netfilter/nf_conntrack_max")
	}
	var errs [3]error
	var pod, uplink side
	n.Uplink, n.PodLinks, errs[1] = readLinks(builtin)
	if builtin { // the names of CNI's links are not known, and few are alike
		pod = sideOf("cor000000000000")
		if len(n.PodLinks) > 0 {
			pod = sideOf(n.PodLinks[0].Name)
			pod.index = 0 // which differs
		}
	}
	if n.Uplink.Name != "" {
		uplink = sideOf(n.Uplink.Name)
	}
	w := firewalled{ranges: ranges, own: c.Name, pod: pod, uplink: uplink, services: readServices()}
	n.Firewalls, n.NodePorts, errs[0] = readNFTables(w)
	legacy, unread := readLegacy(ctx, w)
	n.Firewalls, n.LegacyUnread = append(n.Firewalls, legacy...), unread
	n.Listeners, errs[2] = readListeners("/proc")
	if err := errors.Join(errs[:]...); err != nil {
		n.Err = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return n
}

// sideOf is what rules see of an interface.
func sideOf(name string) side {
	s := side{name: name}
	if l, err := netlink.LinkByName(name); err == nil {
		s.index, s.group = l.Attrs().Index, &l.Attrs().Group
	}
	return s
}

// setting reads a sysctl; it is empty if the kernel does not have it.
func setting(name string) string {
	data, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// readLinks finds the interface with the default route, and the host's ends of pods' links: those
// of the built-in network by their names, others by what they are.
func readLinks(builtin bool) (uplink Link, pods []Link, err error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // pods come and go
		return uplink, nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		ours := strings.HasPrefix(a.Name, "cor") && len(a.Name) == len("cor")+12
		if l.Type() == "veth" && (builtin && ours || !builtin && a.NetNsID >= 0) {
			pods = append(pods, Link{a.Name, a.MTU})
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return uplink, pods, fmt.Errorf("list routes: %w", err)
		}
		best := -1
		for i, r := range routes {
			if r.LinkIndex != 0 && (best < 0 || r.Priority < routes[best].Priority) {
				best = i
			}
		}
		if best < 0 {
			continue
		}
		l, err := netlink.LinkByIndex(routes[best].LinkIndex)
		if err != nil {
			return uplink, pods, fmt.Errorf("find uplink: %w", err)
		}
		return Link{l.Attrs().Name, l.Attrs().MTU}, pods, nil
	}
	return uplink, pods, nil
}

func askCluster(ctx context.Context, socket string) Cluster {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return clusterOf(kubesocket.Parts(ctx, socket))
}

func clusterOf(parts []kubesocket.Part, err error) Cluster {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return Cluster{NotAllowed: true}
	case err != nil && !errors.Is(err, kubesocket.ErrNone):
		return Cluster{Err: err.Error()}
	}
	return Cluster{Parts: parts}
}
