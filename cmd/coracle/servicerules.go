package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// removeRules removes the nftables tables that the cluster process leaves when it ends, so that
// connections to Services go on while it is restarted, and policies hold.
func removeRules(port int) error {
	return errors.Join(removeTable("rules of Services", "coracle-services-"+strconv.Itoa(port)),
		removeTable("rules of network policies", "coracle-policy-"+strconv.Itoa(port)))
}

func removeTable(what, name string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove %s: %w", what, err)
	}
	table, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
	if err != nil {
		return nil // there is no such table, or no nftables at all
	}
	c.DelTable(table)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: nftables table %s: %w", what, name, err)
	}
	return nil
}

// removeHeldAddresses removes the addresses for pods that a killed cluster process has left on lo: those of its API server
// and of its DNS, the first and the tenth of the Services' network.
func removeHeldAddresses(services string) error {
	network, err := netip.ParsePrefix(services)
	if err != nil {
		return nil // nothing has run with it
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("remove addresses for pods: %w", err)
	}
	const api, dns = 1, 10
	held := network.Masked().Addr()
	for n := 1; n <= dns && network.Contains(held.Next()); n++ {
		held = held.Next()
		if n != api && n != dns {
			continue
		}
		mask := net.CIDRMask(held.BitLen(), held.BitLen())
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: held.AsSlice(), Mask: mask}}
		if err := netlink.AddrDel(lo, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s, which is for pods, from lo: %w", held, err)
		}
	}
	return nil
}
