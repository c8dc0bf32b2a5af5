package main

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// addUplink gives this program's network namespace what each node has: a device with an address and
// the default route, before all devices of pods. Where there is none, the kernel looks for an
// address at all pods' devices whenever a route is added (net/ipv4/devinet.c, inet_select_addr).
func addUplink() error {
	device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "lan"}
	if err := netlink.LinkAdd(device); err != nil {
		return fmt.Errorf("add device %s: %w", device.Name, err)
	}
	lan, err := netlink.LinkByName(device.PeerName)
	if err != nil {
		return fmt.Errorf("device %s: %w", device.PeerName, err)
	}
	for _, l := range []netlink.Link{lan, device} {
		if err := netlink.LinkSetUp(l); err != nil {
			return fmt.Errorf("set device %s up: %w", l.Attrs().Name, err)
		}
	}
	node := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 2), Mask: net.CIDRMask(24, 32)}} // RFC 5737, TEST-NET-1
	if err := netlink.AddrAdd(device, node); err != nil {
		return fmt.Errorf("address %s: %w", node, err)
	}
	route := &netlink.Route{LinkIndex: device.Index, Gw: net.IPv4(192, 0, 2, 1)}
	if err := netlink.RouteAdd(route); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}
