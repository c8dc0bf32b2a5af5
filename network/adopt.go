package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
)

// A pod of the built-in network keeps it if its record is damaged or lost: the kernel knows
// what the pod has. The name of its link follows from the pod's id. Its addresses are those in the
// namespace at the other end of the link. Its host ports are the elements of the nftables maps that
// lead to these addresses.

// adopt returns the lease of a pod from the kernel's state. It returns false if the pod has no
// link, and so nothing that another pod could take. It fails if the kernel could not be asked, for
// a reason that may pass: with an incomplete lease, another pod would get the rest.
func (b *builtin) adopt(h *hostLinks, podID string) (lease, bool, error) {
	l := lease{PodID: podID, Stage: connected, Link: vethName(podID)}
	link, err := h.LinkByName(l.Link)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return l, false, nil
	}
	if err != nil {
		return l, false, fmt.Errorf("adopt network of pod %s: find link %s: %w", podID, l.Link, err)
	}
	// Bridged pods' links resolve neighbours, even if someone has deleted their bridge.
	l.Routed = link.Attrs().RawFlags&unix.IFF_NOARP != 0
	given, err := farAddresses(link)
	if l.Routed { // the pod may have changed its own addresses
		given, err = routedAddresses(h, link)
	}
	if transient.Is(err) {
		return l, false, fmt.Errorf("adopt network of pod %s: %w", podID, err)
	}
	if err != nil {
		b.log.Warn("cannot read addresses of pod whose network record is lost; another pod may get them", "pod", podID, "link", l.Link, "err",
			err)
		return l, true, nil
	}
	l.IPs = b.assigned(given)
	ports, err := b.fw.PortsOf(l.IPs)
	for _, p := range ports {
		l.Ports = append(l.Ports, hostPort(p))
	}
	if transient.Is(err) {
		return l, false, fmt.Errorf("adopt network of pod %s: %w", podID, err)
	}
	if err != nil {
		b.log.Warn("cannot read host ports of pod whose network record is lost; another pod may get them", "pod", podID, "link", l.Link, "err",
			err)
	}
	return l, true, nil
}

// assigned returns the addresses of a pod that the network can have given it: at most one of each
// pool, and none that another pod has. A pod that may change its network (CAP_NET_ADMIN) can have
// any address.
func (b *builtin) assigned(given []netip.Addr) []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ips []netip.Addr
	for _, p := range b.pools {
		for _, ip := range given {
			if _, used := p.used[ip]; !used && p.first.Compare(ip) <= 0 && ip.Compare(p.last) <= 0 {
				ips = append(ips, ip)
				break
			}
		}
	}
	return ips
}

// routedAddresses returns the addresses that the host has routes for by a pod's link, IPv4 first.
func routedAddresses(h *hostLinks, link netlink.Link) ([]netip.Addr, error) {
	filter := &netlink.Route{LinkIndex: link.Attrs().Index, Protocol: routeProtocol}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, fmt.Errorf("list routes by link %s: %w", link.Attrs().Name, err)
	}
	var ips []netip.Addr
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if ip, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			ips = append(ips, ip.Unmap())
		}
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return ips, nil
}

// farAddresses returns the addresses of the other end of a link, oldest first. The kernel reports
// them to the host (IFA_TARGET_NETNSID, Linux 5.0), so the namespace's path is not needed.
func farAddresses(link netlink.Link) ([]netip.Addr, error) {
	id := link.Attrs().NetNsID
	if link.Type() != "veth" || id < 0 {
		return nil, fmt.Errorf("link %s of type %s does not lead to another network namespace", link.Attrs().Name, link.Type())
	}
	// The kernel evaluates a request for all addresses only with strict checks.
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer s.Close()
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return nil, fmt.Errorf("enable strict netlink checks: %w", err)
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
	req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, nl.Uint32Attr(uint32(id))))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	if err != nil {
		return nil, fmt.Errorf("list addresses behind link %s: %w", link.Attrs().Name, err)
	}
	var ips []netip.Addr
	for _, m := range messages {
		if len(m) < unix.SizeofIfAddrmsg || binary.NativeEndian.Uint32(m[4:]) != uint32(link.Attrs().ParentIndex) { // ifa_index
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
		if err != nil {
			return nil, fmt.Errorf("list addresses behind link %s: %w", link.Attrs().Name, err)
		}
		for _, a := range attrs {
			if a.Attr.Type != unix.IFA_ADDRESS {
				continue
			}
			ip, ok := netip.AddrFromSlice(a.Value)
			switch {
			case !ok:
			case ip.Is6(): // the kernel reports the newest first (ipv6_link_dev_addr)
				ips = slices.Insert(ips, 0, ip)
			default:
				ips = append(ips, ip)
			}
		}
	}
	return ips, nil
}

// replaceDamaged replaces damaged records with leases from the kernel's state, and puts these into
// force. The leases of good records already are, so no pod gets what they hold.
func (b *builtin) replaceDamaged(all loaded[lease]) error {
	if len(all.damaged) == 0 {
		return nil
	}
	h, err := newHostLinks()
	if err != nil {
		return err
	}
	defer h.close()
	for podID, why := range all.damaged {
		l, ok, err := b.adopt(h, podID)
		if err != nil {
			return err
		}
		if !ok {
			b.records.replace(podID, nil, why)
			continue
		}
		b.take(l)
		b.records.replace(podID, &l, why)
	}
	return nil
}

// adoptLost adds a lease for each claimed pod that has a link but no record.
func (b *builtin) adoptLost(claimed map[string]bool) error {
	lost := map[string]string{} // pod by link
	for id := range claimed {
		if _, ok := b.lease(id); !ok {
			lost[vethName(id)] = id
		}
	}
	if len(lost) == 0 {
		return nil
	}
	h, err := newHostLinks()
	if err != nil {
		return err
	}
	defer h.close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("network %s: list links: %w", b.name, err)
	}
	for _, link := range links {
		podID, ok := lost[link.Attrs().Name]
		if !ok {
			continue
		}
		l, ok, err := b.adopt(h, podID)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		b.log.Warn("network record of pod is missing; rebuilding it from the kernel's state", "pod", podID, "link", l.Link)
		b.take(l)
		if err := b.records.write(podID, l); err != nil {
			b.log.Warn("cannot write missing network record", "pod", podID, "err", err)
		}
	}
	return nil
}

// take puts a lease of an earlier daemon into force, in memory.
func (b *builtin) take(l lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Recover closes the ports of the pods that it removes before another pod can take them.
	l.retired = l.Stage == removing
	b.leases[l.PodID] = l
	b.takeLocked(l.IPs)
	if l.Stage == removing {
		return
	}
	if err := b.ports.claim(l.PodID, l.Ports); err != nil {
		b.log.Warn("two records claim a host port", "pod", l.PodID, "err", err)
	}
}
