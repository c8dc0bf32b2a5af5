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

// serviceTable is the name of the nftables table with the rules of Services of the cluster whose
// API server has this port: serviceTable in cluster/cmd/coracle-kube.
func serviceTable(port int) string { return "coracle-services-" + strconv.Itoa(port) }

// hasServiceRules reports whether that table is there.
func hasServiceRules(port int) bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	_, err = c.ListTableOfFamily(serviceTable(port), nftables.TableFamilyINet)
	return err == nil
}

// removeServiceRules removes the nftables table that a cluster process leaves when it ends, so that
// connections to Services go on while it is restarted. If something listens at the API server's
// address, the port is another cluster's by now, and so is the table.
func removeServiceRules(bind string, port int) error {
	if !hasServiceRules(port) || listens(bind, port) {
		return nil
	}
	name := serviceTable(port)
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove rules of Services: %w", err)
	}
	c.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove rules of Services: nftables table %s: %w", name, err)
	}
	return nil
}

// listens reports whether a process listens at an address of this machine.
func listens(bind string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(port)))
	if err == nil {
		_ = l.Close()
	}
	return errors.Is(err, unix.EADDRINUSE)
}

// removeHeldAddresses removes the addresses for pods that a killed cluster process has left on lo:
// those of its API server and of its DNS, which are the first and the tenth of the Services'
// network unless the DNS was given others there.
func removeHeldAddresses(o upOptions) error {
	network, err := netip.ParsePrefix(o.ServiceCIDR)
	if err != nil {
		return nil // nothing has run with it
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("remove addresses for pods: %w", err)
	}
	const api, dns = 1, 10
	var all []netip.Addr
	each := network.Masked().Addr()
	for n := 1; n <= dns; n++ {
		if each = each.Next(); n == api || n == dns {
			all = append(all, each)
		}
	}
	for _, text := range o.ClusterDNS {
		if addr, err := netip.ParseAddr(text); err == nil {
			all = append(all, addr)
		}
	}
	for _, held := range all {
		if !network.Contains(held) {
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
