package network

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
)

// A host whose pods speak to others forwards packets, and the kernel's switch for that is for all links. So a host that did
// not forward becomes a router for its neighbours on the LAN, unless something keeps it from that: it forwards nothing
// between links that have a default route. Other traffic is none of ours: virtual machines or another container engine may
// count on it. If forwarding was on already, its owner has decided.

// forwardingSwitch is the sysctl, by family.
var forwardingSwitch = map[family]string{ipv4: "ipv4/ip_forward", ipv6: "ipv6/conf/all/forwarding"}

// forwardingIsOff returns the families of subnets that the host does not forward yet.
func forwardingIsOff(subnets []netip.Prefix) ([]family, error) {
	var off []family
	for _, s := range subnets {
		fam := familyOf(s.Addr())
		on, err := readSysctl(forwardingSwitch[fam])
		if err != nil {
			return nil, err
		}
		if on == "0" && !slices.Contains(off, fam) {
			off = append(off, fam)
		}
	}
	return off, nil
}

// enableForwarding makes the host a router.
func enableForwarding(families []family) error {
	for _, fam := range families {
		if fam == ipv6 {
			if err := keepRouterAdvertisements(); err != nil {
				return err
			}
		}
		if err := setSysctl(forwardingSwitch[fam], "1"); err != nil {
			return err
		}
	}
	return nil
}

// closedUplinks returns the links between which nothing is forwarded, for the families that are off, and for those that an
// earlier daemon found to be off: the table has a set then.
func (b *builtin) closedUplinks(h *hostLinks, off []family) (map[family][]string, error) {
	var closed map[family][]string
	for _, fam := range []family{ipv4, ipv6} {
		if !slices.Contains(off, fam) && !b.fw.closes(fam) {
			continue
		}
		names, err := defaultLinks(h, fam)
		if err != nil {
			return nil, err
		}
		if closed == nil {
			closed = map[family][]string{}
		}
		closed[fam] = names
	}
	return closed, nil
}

// defaultLinks returns the names of links with a default route.
func defaultLinks(h *hostLinks, fam family) ([]string, error) {
	nlFamily := netlink.FAMILY_V4
	if fam == ipv6 {
		nlFamily = netlink.FAMILY_V6
	}
	routes, err := h.RouteListFiltered(nlFamily, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range routes {
		link, err := h.LinkByIndex(r.LinkIndex)
		if err == nil && !slices.Contains(names, link.Attrs().Name) {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, nil
}
