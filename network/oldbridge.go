package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// oldBridge is the bridge of releases before routed links. Its pods keep it while they run, and
// treat all addresses of their range as neighbours. So the host answers ARP and neighbour discovery
// on it for routed pods. It is deleted with its last pod.
type oldBridge struct {
	name  string
	index int
}

// bridgeLink returns the host's bridge of our name, nil if there is none.
func (b *builtin) bridgeLink(h *hostLinks) (netlink.Link, error) {
	link, err := h.LinkByName(b.name)
	if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && link.Type() != "bridge" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", b.name, err)
	}
	return link, nil
}

// findBridge returns the bridge if the host has it, else nil. One without pods is deleted.
func (b *builtin) findBridge(h *hostLinks) (*oldBridge, error) {
	link, err := b.bridgeLink(h)
	if link == nil || err != nil {
		return nil, err
	}
	if len(b.onBridge()) > 0 {
		return &oldBridge{name: b.name, index: link.Attrs().Index}, nil
	}
	return nil, b.dropIfOurs(h, link)
}

// dropEmptyBridge deletes the bridge if it was made by an earlier release.
func (b *builtin) dropEmptyBridge() error {
	h, err := newHostLinks()
	if err != nil {
		return err
	}
	defer h.close()
	link, err := b.bridgeLink(h)
	if link == nil || err != nil {
		return err
	}
	return b.dropIfOurs(h, link)
}

func (b *builtin) dropIfOurs(h *hostLinks, link netlink.Link) error {
	if ours, err := b.isOurs(h, link); err != nil || !ours {
		return err
	}
	return b.deleteBridge()
}

// isOurs reports whether a bridge of our name was made by an earlier release, and not by someone
// else: it has a gateway's address, and no other ports than pods'.
func (b *builtin) isOurs(h *hostLinks, bridge netlink.Link) (bool, error) {
	addrs, err := h.AddrList(bridge, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list addresses of %s: %w", b.name, err)
	}
	if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		return slices.ContainsFunc(b.subnets(), func(s netip.Prefix) bool { return a.IP.Equal(s.Addr().Next().AsSlice()) })
	}) {
		return false, nil
	}
	links, err := h.LinkList()
	if err != nil {
		return false, fmt.Errorf("list links: %w", err)
	}
	return !slices.ContainsFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		return a.MasterIndex == bridge.Attrs().Index && !strings.HasPrefix(a.Name, vethPrefix)
	}), nil
}

func (b *builtin) deleteBridge() error {
	b.log.Info("deleting the bridge of an earlier release: it has no pods any more", "bridge", b.name)
	return errors.Join(deleteLink(b.name), b.fw.RemoveBridgeTable())
}

// onBridge returns the pods that are on the bridge, connected or not yet removed.
func (b *builtin) onBridge() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := []string{} // no null for those who print it
	for _, l := range b.leases {
		if !l.Routed {
			ids = append(ids, l.PodID)
		}
	}
	return ids
}

// dress makes routed pods, with these addresses, neighbours of those on the bridge.
func (o *oldBridge) dress(h *host, ips []netip.Addr) error {
	if o == nil {
		return nil
	}
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: o.name, Index: o.index}}
	if err := h.links.LinkSetGroup(link, int(linkGroup(o.name))); err != nil {
		return fmt.Errorf("group of bridge %s: %w", o.name, err)
	}
	for name, value := range map[string]string{
		"ipv4/conf/NAME/proxy_arp": "1", "ipv4/neigh/NAME/proxy_delay": "0",
		"ipv6/conf/NAME/proxy_ndp": "1", "ipv6/neigh/NAME/proxy_delay": "0",
	} {
		if err := setSysctl(strings.Replace(name, "NAME", o.name, 1), value); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return o.answerFor(h, ips)
}

// answerFor has the host answer on the bridge for IPv6 addresses that are not on it. For IPv4, it
// does so by itself.
func (o *oldBridge) answerFor(h *host, ips []netip.Addr) error {
	if o == nil {
		return nil
	}
	for _, ip := range ips {
		if !ip.Is6() {
			continue
		}
		n := &netlink.Neigh{LinkIndex: o.index, Family: netlink.FAMILY_V6, Flags: netlink.NTF_PROXY, IP: ip.AsSlice()}
		if err := h.links.NeighSet(n); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("answer for %s on bridge %s: %w", ip, o.name, err)
		}
	}
	return nil
}

// leaveBridge deletes the bridge if the pod is the last one on it.
func (b *builtin) leaveBridge(podID string) error {
	if slices.ContainsFunc(b.onBridge(), func(id string) bool { return id != podID }) {
		return nil
	}
	b.hostMu.Lock()
	defer b.hostMu.Unlock()
	if b.host == nil { // the host's side has not been needed
		return b.dropEmptyBridge()
	}
	if b.host.bridge == nil {
		return nil
	}
	if err := b.deleteBridge(); err != nil {
		return err
	}
	return b.redressLocked(func(h *host) { h.bridge = nil })
}
