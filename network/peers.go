package network

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// peerRoutes is the protocol (rtm_protocol, rtnetlink(7)) of routes to the pods of other nodes. The
// cluster's overlay makes them (cluster/overlay/paths); another program that connects nodes may do
// so, too. Such a route says that its network and its gateway belong to the cluster: their packets
// may go to pods by the pods' own addresses, like those of Config.AllowFrom. Only root can add one,
// and it stays in the kernel while either side is restarted. The routing table does not matter: one
// that no rule refers to has addresses of nodes, which are reached by other routes.
const peerRoutes = 86

// peerRanges returns the networks and gateways of such routes. None is a part of another.
func peerRanges(h *hostLinks) ([]netip.Prefix, error) {
	filter := &netlink.Route{Protocol: peerRoutes, Table: unix.RT_TABLE_UNSPEC}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) { // another message follows
		return nil, err
	}
	var all []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		bits, _ := r.Dst.Mask.Size()
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok && bits > 0 {
			all = append(all, netip.PrefixFrom(a.Unmap(), bits).Masked())
		}
		if a, ok := netip.AddrFromSlice(r.Gw); ok {
			all = append(all, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
		}
	}
	// The larger of two that begin with the same address comes first.
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var apart []netip.Prefix
	for _, p := range all {
		if n := len(apart); n == 0 || !apart[n-1].Contains(p.Addr()) {
			apart = append(apart, p)
		}
	}
	return apart, nil
}

// peersChanged is called when routes to other nodes' pods changed.
func (b *builtin) peersChanged() {
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host == nil {
		return
	}
	peers, err := peerRanges(b.host.links)
	if err == nil && slices.Equal(peers, b.peers) {
		return
	}
	if err == nil {
		err = b.fw.SetPeers(peers)
	}
	if err != nil {
		b.log.Error("cannot follow the routes to other nodes' pods: these may not reach this node's pods", "err", err)
		return
	}
	b.peers = peers
}
