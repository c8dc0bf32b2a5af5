package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network/firewall"
)

// host is the host's side of the built-in network, made.
type host struct {
	links    *hostLinks
	mtu      int
	ipv6     bool              // the host has IPv6
	gateways []netip.Addr      // the host's addresses towards pods, one per family in use
	unused   []netip.Prefix    // ranges of IPv6, if the host has no IPv6 for pods
	closed   []firewall.Family // whose packets are not forwarded between uplinks
	bridge   *oldBridge        // nil if there is none
}

// defaultMTU is Ethernet's.
const defaultMTU = 1500

// ensureHost returns the host's side, making what is missing.
func (b *builtin) ensureHost() (*host, error) {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != nil {
		if b.host.ipv6 != b.hasIPv6() {
			if err := b.redressLocked(func(*host) {}); err != nil {
				return nil, fmt.Errorf("network %s: %w", b.name, err)
			}
		}
		return b.host, nil
	}
	links, err := newHostLinks()
	if err != nil {
		return nil, err
	}
	h := &host{links: links}
	if err := b.makeHostLocked(h); err != nil {
		links.close()
		return nil, fmt.Errorf("network %s: %w", b.name, err)
	}
	b.host = h
	return h, nil
}

// repairHost makes the host's side again if a part of it has gone since h was made, and reports
// whether it did.
func (b *builtin) repairHost(h *host) bool {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host != h {
		return b.host != nil // another Setup was faster
	}
	if b.fw.Exists() && h.hasGateways() {
		return false
	}
	b.log.Warn("the pod network's nftables table or addresses were removed; restoring them", "network", b.name)
	// The sockets are used by others meanwhile, so they stay.
	rebuilt := &host{links: h.links}
	if err := b.makeHostLocked(rebuilt); err != nil {
		b.log.Error("cannot make the host's side of the pods' network again", "network", b.name, "err", err)
		return false
	}
	b.host = rebuilt
	return true
}

func (b *builtin) makeHostLocked(h *host) error {
	h.mtu = b.mtu
	if h.mtu == 0 {
		h.mtu = uplinkMTU(h.links)
	}
	var err error
	if h.bridge, err = b.findBridge(h.links); err != nil {
		return err
	}
	b.changes.start()
	b.tableWatch.start(b.fw)
	if err := b.dress(h); err != nil {
		return err
	}
	if err := b.reconnect(h); err != nil {
		return err
	}
	b.warnOfDrops()
	return nil
}

// reconnect restores routes and neighbours of connected pods: another program may have removed
// routes, or an earlier release may have put links on its bridge.
func (b *builtin) reconnect(h *host) error {
	mine := map[string]lease{}
	for _, l := range b.connected() {
		if l.Routed {
			mine[l.Link] = l
		}
	}
	if len(mine) == 0 {
		return nil
	}
	links, err := h.links.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	routes, err := h.links.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	count := map[int]int{} // by link
	for _, r := range routes {
		count[r.LinkIndex]++
	}
	for _, nlLink := range links {
		at := nlLink.Attrs()
		l, ok := mine[at.Name]
		if !ok || at.MasterIndex == 0 && count[at.Index] == len(l.IPs) {
			continue
		}
		b.log.Info("connecting a pod again", "pod", l.PodID, "link", l.Link)
		if at.MasterIndex != 0 {
			if err := h.links.LinkSetNoMaster(nlLink); err != nil {
				return fmt.Errorf("take %s off its bridge: %w", l.Link, err)
			}
		}
		if err := b.linkOf(h, l, at.Index).connect(h.links.Handle, h.gateways); err != nil {
			return fmt.Errorf("pod %s: %w", l.PodID, err)
		}
	}
	return nil
}

// warnOfDrops tells the operator of another firewall that drops what is forwarded
// (docker's and firewalld's policy): no rule of ours can overrule it.
func (b *builtin) warnOfDrops() {
	for _, c := range b.fw.DropsForwarded() {
		b.log.Warn("another firewall drops forwarded packets: unless it has a rule for the pods' ranges, pods do not reach beyond this host",
			"subnets", b.subnets(), "table", c.Table, "chain", c.Name)
	}
}

// dress gives the host its addresses, routes and rules, for the subnets in force now. The rules
// come before forwarding is turned on.
func (b *builtin) dress(h *host) error {
	h.ipv6 = b.hasIPv6()
	subnets, err := b.claimRanges(h)
	if err != nil {
		return err
	}
	h.gateways, h.unused = nil, slices.DeleteFunc(b.subnets(), func(s netip.Prefix) bool { return slices.Contains(subnets, s) })
	for _, s := range subnets {
		h.gateways = append(h.gateways, s.Addr().Next())
	}
	off, err := forwardingIsOff(subnets)
	if err != nil {
		return err
	}
	peers, err := peerRanges(h.links)
	if err != nil {
		return fmt.Errorf("list routes to other nodes' pods: %w", err)
	}
	r := firewall.Rules{
		Subnets: b.withLeased(subnets), Gateways: h.gateways, Allowed: b.allowed, Peers: peers,
		Bridge: h.bridge != nil, Pods: b.entries,
	}
	if h.closed, err = b.turnedOn(off); err != nil {
		return err
	}
	if r.Uplinks, err = closedUplinks(h.links, h.closed); err != nil {
		return err
	}
	if err := b.fw.Replace(r); err != nil {
		return err
	}
	b.peers = peers
	if err := enableForwarding(off); err != nil {
		return err
	}
	return h.bridge.dress(h, b.leasedIPs())
}

// rangeRoute is an unreachable route for a range of pods. Without it, a packet to a deleted pod
// would leave by the default route. Protocol and metric mark it as ours.
func (b *builtin) rangeRoute(s netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst: ipNet(s.Addr(), s.Bits()), Type: unix.RTN_UNREACHABLE, Protocol: routeProtocol,
		Priority: int(linkGroup(b.name)),
	}
}

// gatewayAddr is the host's address towards pods. It is on loopback, since it belongs to no one
// link, and has host scope, so that the host uses it only towards pods.
func gatewayAddr(gw netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: ipNet(gw, gw.BitLen()), Scope: unix.RT_SCOPE_HOST, Flags: unix.IFA_F_NODAD}
}

// claimRanges gives the host an address in each range of pods, and a route for what no pod has of
// it. It returns the ranges in use: IPv6 may be off. A range of earlier settings is given up when
// no pod has an address of it any more: with the host's address go all routes that prefer it.
// Routes show which ranges these were.
func (b *builtin) claimRanges(h *host) ([]netip.Prefix, error) {
	lo, err := h.links.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	have, err := b.ranges(h.links)
	if err != nil {
		return nil, err
	}
	subnets, leased := b.subnets(), b.leasedIPs()
	for _, s := range have {
		if slices.Contains(subnets, s) || slices.ContainsFunc(leased, s.Contains) {
			continue
		}
		b.log.Info("giving up a range of pods", "network", b.name, "range", s)
		if err := b.dropRange(h.links, lo, s); err != nil {
			return nil, err
		}
	}
	var used []netip.Prefix
	for _, s := range subnets {
		if s.Addr().Is6() && (!h.ipv6 || h.mtu < minIPv6MTU) {
			b.log.Warn("the host has no IPv6 for pods: they get none", "subnet", s, "mtu", h.mtu)
			continue
		}
		if err := h.links.RouteReplace(b.rangeRoute(s)); err != nil {
			return nil, fmt.Errorf("route for the pods' range %s: %w", s, err)
		}
		err := h.links.AddrReplace(lo, gatewayAddr(s.Addr().Next()))
		if s.Addr().Is6() && errors.Is(err, unix.EACCES) {
			b.log.Warn("IPv6 is off on lo (net.ipv6.conf.lo.disable_ipv6): pods get none", "subnet", s)
			if err := b.dropRange(h.links, lo, s); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("give the host address %s: %w", s.Addr().Next(), err)
		}
		used = append(used, s)
	}
	return used, nil
}

// minIPv6MTU is the smallest MTU of a link with IPv6 (RFC 8200, 5).
const minIPv6MTU = 1280

// ranges lists the ranges that the host has routes of ours for.
func (b *builtin) ranges(h *hostLinks) ([]netip.Prefix, error) {
	filter := &netlink.Route{Protocol: routeProtocol, Type: unix.RTN_UNREACHABLE}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TYPE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var all []netip.Prefix
	for _, r := range routes {
		if r.Priority != int(linkGroup(b.name)) || r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP)
		if bits, _ := r.Dst.Mask.Size(); ok {
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all, nil
}

func (b *builtin) dropRange(h *hostLinks, lo netlink.Link, s netip.Prefix) error {
	if err := h.AddrDel(lo, gatewayAddr(s.Addr().Next())); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove the host's address %s: %w", s.Addr().Next(), err)
	}
	if err := h.RouteDel(b.rangeRoute(s)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route for the pods' range %s: %w", s, err)
	}
	return nil
}

// hasGateways reports whether the host still has its addresses towards pods, as far as can be told.
func (h *host) hasGateways() bool {
	lo, err := h.links.LinkByName("lo")
	if err != nil {
		return true
	}
	have, err := h.links.AddrList(lo, netlink.FAMILY_ALL)
	if err != nil {
		return true
	}
	for _, gw := range h.gateways {
		if !slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IP.Equal(gw.AsSlice()) }) {
			return false
		}
	}
	return true
}

func (b *builtin) leasedIPs() []netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []netip.Addr
	for _, l := range b.leases {
		all = append(all, l.IPs...)
	}
	return all
}

// withLeased adds the addresses of pods whose subnet is no longer in force.
func (b *builtin) withLeased(subnets []netip.Prefix) []netip.Prefix {
	all := slices.Clone(subnets)
	for _, ip := range b.leasedIPs() {
		if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(ip) }) {
			all = append(all, netip.PrefixFrom(ip, ip.BitLen()))
		}
	}
	return all
}

// connected returns the leases of all pods that are.
func (b *builtin) connected() []lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []lease
	for _, l := range b.leases {
		if l.Stage == connected {
			all = append(all, l)
		}
	}
	return all
}

// uplinkMTU returns the MTU of the link that the host's default route goes by.
func uplinkMTU(h *hostLinks) int {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		links, err := defaultLinks(h, family)
		if err != nil {
			continue
		}
		for _, l := range links {
			if l.Attrs().MTU > 0 {
				return min(l.Attrs().MTU, 65535)
			}
		}
	}
	return defaultMTU
}

// recover takes down what belongs to no claimed pod, and puts the host's side in
// order if any pod is left.
func (b *builtin) recover(ctx context.Context, claimed map[string]bool) error {
	// Teardowns may take all the time there is, and programs could take the ports meanwhile.
	errs := []error{b.adoptLost(claimed), b.rehold(ctx, claimed)}
	kept := 0
	for _, l := range b.list() {
		if claimed[l.PodID] {
			kept++
			continue
		}
		errs = append(errs, b.Teardown(ctx, Pod{ID: l.PodID}))
	}
	// A table that is there without pods may have host ports of pods whose teardown
	// a crash cut short, and the host may have a range that is no longer configured.
	if kept > 0 || b.fw.Exists() {
		if _, err := b.ensureHost(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, b.dropStrayLinks(claimed))...)
}

// dropStrayLinks deletes links of pods that no record names: a crash came
// between the record's removal and nothing else, so there should be none. A claimed pod's link
// stays, even if nothing more is known about the pod.
func (b *builtin) dropStrayLinks(claimed map[string]bool) error {
	links, err := newHostLinks()
	if err != nil {
		return err
	}
	defer links.close()
	all, err := links.LinkList()
	if err != nil {
		return fmt.Errorf("network %s: list links: %w", b.name, err)
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
		if a.Group == linkGroup(b.name) && l.Type() == "veth" && strings.HasPrefix(a.Name, vethPrefix) && !known[a.Name] {
			b.log.Warn("deleting a link that no pod owns", "link", a.Name)
			errs = append(errs, deleteLink(a.Name))
		}
	}
	return errors.Join(errs...)
}

// purge takes the host's side down. It fails if a pod is connected.
func (b *builtin) purge(ctx context.Context) error {
	if err := b.reaper.idle(ctx); err != nil {
		return fmt.Errorf("network %s: await deletion of links: %w", b.name, err)
	}
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if left := b.list(); len(left) > 0 {
		return fmt.Errorf("network %s: still used by %d pods, one is %s", b.name, len(left), left[0].PodID)
	}
	if b.host != nil {
		b.host.links.close()
		b.host = nil
	}
	links, err := newHostLinks()
	if err != nil {
		return err
	}
	defer links.close()
	_, err = b.findBridge(links) // without pods, it is deleted
	return errors.Join(err, b.dropRanges(links), b.fw.Remove())
}

// dropRanges gives up all ranges: those in force, and those that there are routes for.
func (b *builtin) dropRanges(h *hostLinks) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	have, err := b.ranges(h)
	errs := []error{err}
	for _, s := range append(have, b.subnets()...) {
		if s.Addr().Is6() && !b.hasIPv6() {
			continue
		}
		errs = append(errs, b.dropRange(h, lo, s))
	}
	return errors.Join(errs...)
}

// reapOne takes down a pod that Teardown left to the background.
func (b *builtin) reapOne(ctx context.Context, podID string) error {
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

// finish deletes the link of a retired lease, if it still exists, the connections to it, and its
// record, and frees its addresses. The caller holds the pod.
func (b *builtin) finish(ctx context.Context, l lease) error {
	if linkExists(l.Link) {
		if err := deleteLink(l.Link); err != nil {
			return err
		}
	}
	if err := faultReapUnlinked.At(ctx); err != nil {
		return err
	}
	b.forgetConnections(l)
	if err := b.records.remove(l.PodID); err != nil {
		return err
	}
	if !l.Routed {
		if err := b.leaveBridge(l.PodID); err != nil {
			return err
		}
	}
	b.free(l)
	return nil
}
