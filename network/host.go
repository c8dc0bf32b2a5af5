package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// host is the host's side of the bridge network, made.
type host struct {
	links *hostLinks
	index int // of the bridge
	mtu   int
}

// defaultMTU is Ethernet's.
const defaultMTU = 1500

// ensureHost returns the host's side, making what is missing.
func (b *bridge) ensureHost() (*host, error) {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != nil {
		return b.host, nil
	}
	links, err := newHostLinks()
	if err != nil {
		return nil, err
	}
	h := &host{links: links}
	if err := b.makeHostLocked(h); err != nil {
		links.close()
		return nil, fmt.Errorf("bridge %s: %w", b.name, err)
	}
	b.host = h
	return h, nil
}

// mendHost makes the host's side anew if something of it has gone since it was made
// as h, and reports whether it did.
func (b *bridge) mendHost(h *host) bool {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != h {
		return b.host != nil // another Setup was faster
	}
	_, err := h.links.LinkByIndex(h.index)
	if err == nil && b.fw.exists() {
		return false
	}
	b.log.Warn("the bridge or its nftables table has gone; making it again", "bridge", b.name)
	// The sockets are used by others meanwhile, so they stay.
	mended := &host{links: h.links}
	if err := b.makeHostLocked(mended); err != nil {
		b.log.Error("cannot make the bridge again", "bridge", b.name, "error", err)
		return false
	}
	b.host = mended
	return true
}

func (b *bridge) makeHostLocked(h *host) error {
	h.mtu = b.mtu
	if h.mtu == 0 {
		h.mtu = uplinkMTU(h.links)
	}
	if err := b.makeBridge(h); err != nil {
		return err
	}
	if err := b.attachPods(h); err != nil {
		return err
	}
	b.warnOfDrops()
	return b.dress(h)
}

// attachPods puts the links of connected pods on the bridge, which they fell off if
// somebody deleted it.
func (b *bridge) attachPods(h *host) error {
	mine := map[string]bool{}
	for _, l := range b.list() {
		mine[l.Link] = !l.Removing
	}
	if len(mine) == 0 {
		return nil
	}
	links, err := h.links.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		name := l.Attrs().Name
		if !mine[name] || l.Attrs().MasterIndex == h.index {
			continue
		}
		if err := h.links.LinkSetMasterByIndex(l, h.index); err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		if err := (veth{name: name, group: linkGroup(b.name)}).makePort(h.links); err != nil {
			return err
		}
	}
	return nil
}

// warnOfDrops tells the operator of another firewall that drops what is forwarded
// (docker's and firewalld's policy): no rule of ours can overrule it.
func (b *bridge) warnOfDrops() {
	for _, c := range b.fw.dropsForwarded() {
		b.log.Warn("another firewall drops forwarded packets: unless it has a rule for the bridge, pods do not reach beyond this host",
			"bridge", b.name, "table", c.Table.Name, "chain", c.Name)
	}
}

// dress gives the bridge its addresses and the host its rules, for the subnets in
// force now.
func (b *bridge) dress(h *host) error {
	var v4, v6 bool
	var subnets []netip.Prefix
	for _, s := range b.subnets() {
		if s.Addr().Is6() && !hasIPv6() {
			b.log.Warn("the host has no IPv6: pods get none", "subnet", s)
			continue
		}
		v4, v6 = v4 || s.Addr().Is4(), v6 || s.Addr().Is6()
		addr := &netlink.Addr{IPNet: ipNet(s.Addr().Next(), s.Bits())}
		if s.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.name, Index: h.index}}
		if err := h.links.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", addr, err)
		}
		subnets = append(subnets, s)
	}
	if err := b.dropStaleAddresses(h, subnets); err != nil {
		return err
	}
	if err := enableForwarding(b.name, v4, v6); err != nil {
		return err
	}
	return b.fw.replace(b.withLeased(subnets), b.openEntries())
}

// dropStaleAddresses takes from the bridge what neither the subnets in force nor a
// pod's address needs: the range that it had before another was configured. The route
// that comes with such an address would swallow what is meant for somebody else.
func (b *bridge) dropStaleAddresses(h *host, subnets []netip.Prefix) error {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: b.name, Index: h.index}}
	have, err := h.links.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	inUse := b.leasedIPs()
	for _, a := range have {
		ip, ok := netip.AddrFromSlice(a.IP)
		ip = ip.Unmap()
		if !ok || ip.IsLinkLocalUnicast() {
			continue
		}
		bits, _ := a.Mask.Size()
		of := netip.PrefixFrom(ip, bits).Masked()
		if slices.Contains(subnets, of) && ip == of.Addr().Next() || slices.ContainsFunc(inUse, of.Contains) {
			continue
		}
		b.log.Info("removing an address that no pod needs any more", "bridge", b.name, "address", a.IPNet)
		if err := h.links.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	return nil
}

func (b *bridge) leasedIPs() []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []netip.Addr
	for _, l := range b.leases {
		all = append(all, l.IPs...)
	}
	return all
}

// withLeased adds the addresses of pods whose subnet is no longer in force.
func (b *bridge) withLeased(subnets []netip.Prefix) []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.leases {
		for _, ip := range l.IPs {
			known := false
			for _, s := range subnets {
				known = known || s.Contains(ip)
			}
			if !known {
				subnets = append(subnets, netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	return subnets
}

// openEntries returns the host ports of all pods that are connected.
func (b *bridge) openEntries() []portEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	var entries []portEntry
	for _, l := range b.leases {
		if l.Stage == connected {
			entries = append(entries, l.entries()...)
		}
	}
	return entries
}

// makeBridge makes the bridge, or takes the one that is there.
func (b *bridge) makeBridge(h *host) error {
	link, err := h.links.LinkByName(b.name)
	switch {
	case err == nil:
	case errors.As(err, new(netlink.LinkNotFoundError)):
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = b.name, h.mtu
		// Its own: else it takes the lowest of its ports', and changes with them.
		attrs.HardwareAddr = macOf(b.subnets()[0].Addr().Next())
		noSnooping := false // see stopChatter
		if err := h.links.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &noSnooping}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("create: %w", err)
		}
		if link, err = h.links.LinkByName(b.name); err != nil {
			return fmt.Errorf("find: %w", err)
		}
	default:
		return fmt.Errorf("find: %w", err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("%w: the host has a link of that name, of type %s; choose another bridge name", ErrConfig, link.Type())
	}
	if link.Attrs().MTU != h.mtu { // another was configured when it was made
		if err := h.links.LinkSetMTU(link, h.mtu); err != nil {
			return fmt.Errorf("set MTU %d: %w", h.mtu, err)
		}
	}
	// Without a link-local address the host asks for no neighbour on behalf of
	// others, so pods could not be reached for as long as the search for
	// duplicates of that address takes: a second or two.
	if err := setSysctl("ipv6/conf/"+b.name+"/accept_dad", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// Pods may send router advertisements (CAP_NET_RAW), and the host would send its
	// own traffic by whoever calls himself a router (CVE-2020-13401).
	if err := setSysctl("ipv6/conf/"+b.name+"/accept_ra", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := h.links.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	h.index = link.Attrs().Index
	if err := b.stopChatter(h, link); err != nil {
		b.log.Warn("pods hear of their neighbours' IPv6 groups: starts take longer the more pods there are", "bridge", b.name, "error", err)
	}
	return nil
}

// stopChatter keeps from the pods what their neighbours tell of IPv6 groups. The bridge itself must not go by that
// either: where somebody asks for groups (a querier: any pod could), it would send what is for a group that
// nobody has told of, such as a search for a neighbour, to nobody.
func (b *bridge) stopChatter(h *host, link netlink.Link) error {
	// Only if it is not off yet: the library sends the name, too, and before Linux 6.2 a link that is
	// up refuses even its own.
	if br, ok := link.(*netlink.Bridge); !ok || br.MulticastSnooping == nil || *br.MulticastSnooping {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.Index = b.name, h.index
		if err := h.links.BridgeSetMcastSnoop(&netlink.Bridge{LinkAttrs: attrs}, false); err != nil {
			return fmt.Errorf("have multicast sent to all pods: %w", err)
		}
	}
	if err := b.fw.keepReports(); err != nil {
		return fmt.Errorf("filter on the bridge (CONFIG_NF_TABLES_BRIDGE): %w", err)
	}
	return nil
}

// uplinkMTU returns the MTU of the link that the host's default route goes by.
func uplinkMTU(h *hostLinks) int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if link, err := h.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU > 0 {
				return min(link.Attrs().MTU, 65535)
			}
		}
	}
	return defaultMTU
}

// recover takes down what belongs to no claimed pod, and puts the host's side in
// order if any pod is left.
func (b *bridge) recover(ctx context.Context, claimed map[string]bool) error {
	errs := []error{b.adoptLost(claimed)}
	kept := 0
	for _, l := range b.list() {
		if claimed[l.PodID] {
			kept++
			continue
		}
		errs = append(errs, b.Teardown(ctx, Pod{ID: l.PodID}))
	}
	// A bridge that is there without pods may have host ports of pods whose teardown
	// a crash cut short, or addresses of a range that is no longer configured.
	standing, err := b.standing()
	errs = append(errs, err)
	if kept > 0 || standing {
		if _, err := b.ensureHost(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, b.dropStrayLinks(claimed))...)
}

// standing reports whether the host has the bridge.
func (b *bridge) standing() (bool, error) {
	links, err := newHostLinks()
	if err != nil {
		return false, err
	}
	defer links.close()
	link, err := links.LinkByName(b.name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("bridge %s: find: %w", b.name, err)
	}
	return link.Type() == "bridge", nil
}

// dropStrayLinks deletes links on the bridge that no record names: a crash came
// between the record's removal and nothing else, so there should be none. A claimed pod's link
// stays, even if nothing more is known about the pod.
func (b *bridge) dropStrayLinks(claimed map[string]bool) error {
	links, err := newHostLinks()
	if err != nil {
		return err
	}
	defer links.close()
	br, err := links.LinkByName(b.name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bridge %s: find: %w", b.name, err)
	}
	all, err := links.LinkList()
	if err != nil {
		return fmt.Errorf("bridge %s: list links: %w", b.name, err)
	}
	known := map[string]bool{}
	for id := range claimed {
		known[vethName(id)] = true
	}
	for _, l := range b.list() {
		known[l.Link] = true
	}
	var errs []error
	for _, l := range all {
		a := l.Attrs()
		if a.MasterIndex == br.Attrs().Index && l.Type() == "veth" && strings.HasPrefix(a.Name, vethPrefix) && !known[a.Name] {
			b.log.Warn("deleting a link that no pod owns", "link", a.Name)
			errs = append(errs, deleteLink(a.Name))
		}
	}
	return errors.Join(errs...)
}

// purge takes the host's side down. It fails if a pod is connected.
func (b *bridge) purge(ctx context.Context) error {
	if err := b.reaper.idle(ctx); err != nil {
		return fmt.Errorf("bridge %s: await deletion of links: %w", b.name, err)
	}
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if left := b.list(); len(left) > 0 {
		return fmt.Errorf("bridge %s: still used by %d pods, one is %s", b.name, len(left), left[0].PodID)
	}
	if b.host != nil {
		b.host.links.close()
		b.host = nil
	}
	return errors.Join(deleteLink(b.name), b.fw.remove())
}

// reapOne takes down a pod that Teardown left to the background.
func (b *bridge) reapOne(ctx context.Context, podID string) error {
	// What holds a pod is a Setup or Teardown of milliseconds.
	release, err := b.busy.Acquire(ctx, podID)
	if err != nil {
		return err
	}
	defer release()
	l, ok := b.lease(podID)
	if !ok || l.Stage != removing {
		return nil // a Setup was faster, and took it down itself
	}
	return b.finish(ctx, l)
}

// finish deletes the link of a lease that is retired, then its record, and frees
// its addresses. The caller holds the pod.
func (b *bridge) finish(ctx context.Context, l lease) error {
	if err := deleteLink(l.Link); err != nil {
		return err
	}
	if err := faultReapUnlinked.At(ctx); err != nil {
		return err
	}
	if err := b.records.remove(l.PodID); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.freeLocked(l)
	return nil
}
