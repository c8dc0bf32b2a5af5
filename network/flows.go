package network

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetFlows deletes the connection tracker's entries of UDP flows to host ports,
// which would keep going where they went before.
func forgetFlows(ports []hostPort) error {
	var filters []netlink.CustomConntrackFilter
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		f := &netlink.ConntrackFilter{}
		if err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP), f.AddPort(netlink.ConntrackOrigDstPort, p.Port)); err != nil {
			return fmt.Errorf("conntrack filter: %w", err)
		}
		filters = append(filters, f)
	}
	if len(filters) == 0 {
		return nil
	}
	if n, err := readSysctl("netfilter/nf_conntrack_count"); err == nil && n == "0" {
		return nil
	}
	// The kernel walks its whole hash table for each request, 10 ms here: look for
	// flows of both families at once, for mostly there is none.
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("list UDP flows: %w", err)
	}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(flows, func(flow *netlink.ConntrackFlow) bool {
			return netlink.InetFamily(flow.FamilyType) == family && slices.ContainsFunc(filters, func(f netlink.CustomConntrackFilter) bool {
				return f.MatchConntrackFlow(flow)
			})
		}) {
			continue
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...); err != nil {
			return fmt.Errorf("forget UDP flows: %w", err)
		}
	}
	return nil
}
