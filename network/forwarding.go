package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/internal/forwarded"
	"github.com/coracle-project/coracle/network/firewall"
)

// Pods need the host to forward packets, and the kernel's switch for that is for all links. A host
// that did not forward before would become a router for its LAN. So nothing is forwarded between
// links with a default route then. Other traffic is left alone: virtual machines or other container
// engines may need it. So are connections whose destination a rule of the host has changed: those
// to a Service's node port or load balancer may lead to pods of other nodes by the link they came
// from. If forwarding was on before, the operator has chosen it. A file in the state directory says
// for which families we, or coracle up --nodes, have turned it on.

// forwardingSwitch is the sysctl, by family.
var forwardingSwitch = map[firewall.Family]string{firewall.IPv4: "ipv4/ip_forward", firewall.IPv6: "ipv6/conf/all/forwarding"}

// forwardingIsOff returns the families of subnets that the host does not forward yet.
func forwardingIsOff(subnets []netip.Prefix) ([]firewall.Family, error) {
	var off []firewall.Family
	for _, s := range subnets {
		fam := firewall.FamilyOf(s.Addr())
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
func enableForwarding(families []firewall.Family) error {
	for _, fam := range families {
		if fam == firewall.IPv6 {
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

// turnedOn returns the families that we have turned forwarding on for, and those of off, which we
// are about to. A file that cannot be read counts as all families.
func (b *builtin) turnedOn(off []firewall.Family) ([]firewall.Family, error) {
	all := []firewall.Family{firewall.IPv4, firewall.IPv6}
	recorded, err := forwarded.Read(b.stateDir)
	if err != nil {
		b.log.Warn("cannot read for which families forwarding was turned on; the host forwards nothing between its uplinks", "err", err)
		return all, nil
	}
	var on []firewall.Family
	var names []string
	for _, fam := range all {
		if strings.Contains(recorded, fam.Suffix()) || slices.Contains(off, fam) {
			on, names = append(on, fam), append(names, fam.Suffix())
		}
	}
	return on, forwarded.Add(b.stateDir, names...)
}

// closedUplinks returns the links between which nothing is forwarded, by family.
func closedUplinks(h *hostLinks, families []firewall.Family) (map[firewall.Family][]string, error) {
	closed := map[firewall.Family][]string{}
	for _, fam := range families {
		nlFamily := netlink.FAMILY_V4
		if fam == firewall.IPv6 {
			nlFamily = netlink.FAMILY_V6
		}
		links, err := defaultLinks(h, nlFamily)
		if err != nil {
			return nil, err
		}
		closed[fam] = nil
		for _, l := range links {
			closed[fam] = append(closed[fam], l.Attrs().Name)
		}
	}
	return closed, nil
}

// uplinksChanged is called when a default route was added or deleted.
func (b *builtin) uplinksChanged() {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host == nil || len(b.host.closed) == 0 {
		return
	}
	closed, err := closedUplinks(b.host.links, b.host.closed)
	if err == nil {
		err = b.fw.SetUplinks(closed)
	}
	if err != nil {
		b.log.Error("cannot follow the host's default routes: it may forward between new uplinks", "err", err)
	}
}

// defaultLinks returns the links with a default route of a family (netlink.FAMILY_V4), each once. A
// route may lead by several links (RTA_MULTIPATH, rtnetlink(7)).
func defaultLinks(h *hostLinks, nlFamily int) ([]netlink.Link, error) {
	routes, err := h.RouteListFiltered(nlFamily, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil, err
	}
	var indexes []int
	for _, r := range routes {
		indexes = append(indexes, r.LinkIndex)
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	var links []netlink.Link
	for i, index := range indexes {
		if index == 0 || slices.Contains(indexes[:i], index) {
			continue
		}
		link, err := h.LinkByIndex(index)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue // its routes are gone, too
		}
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}
