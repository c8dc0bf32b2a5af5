package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// rulesOf are the names of the nftables tables of the cluster whose API server has this port:
// serviceTable and policyTable in cluster/cmd/coracle-kube.
func rulesOf(port int) []string {
	p := strconv.Itoa(port)
	return []string{"coracle-services-" + p, "coracle-policy-" + p}
}

// rulesLeft returns those of the tables that are there, or may be.
func rulesLeft(port int) []string {
	c, err := nftables.New()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(rulesOf(port), func(name string) bool {
		_, err := c.ListTableOfFamily(name, nftables.TableFamilyINet)
		return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) // a kernel without nftables
	})
}

// removeRules removes the nftables tables that a cluster process leaves when it ends, so that
// connections to Services go on while it is restarted, and policies hold. If something listens at
// the API server's address, or a cluster has the port at another one, it is another cluster's by
// now, and so are the tables.
func removeRules(bind string, port int) error {
	left := rulesLeft(port)
	if len(left) == 0 || taken(bind, port) {
		return nil
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove rules of Services and policies: %w", err)
	}
	for _, name := range left {
		c.DelTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove rules of Services and policies: nftables table %s: %w", name, err)
		}
	}
	return nil
}

// taken reports whether a process listens at an address of this machine, or a cluster process has
// claimed the port: claimPort in cluster/cmd/coracle-kube.
func taken(bind string, port int) bool {
	if c, err := nftables.New(); err == nil {
		if _, err := c.ListTableOfFamily("coracle-cluster-"+strconv.Itoa(port), nftables.TableFamilyINet); err == nil {
			return true
		}
	}
	l, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(port)))
	if err == nil {
		_ = l.Close()
	}
	return errors.Is(err, unix.EADDRINUSE)
}

// removeHeldAddresses removes the addresses for pods that a killed cluster process has left on lo:
// those of its API server and of its DNS, which are the first and the tenth of the Services' first
// network unless the DNS was given others there. An address at which someone listens, or whose
// tables (package cluster/nodeaddr) have an owner, is held by another cluster. Without an owner, as
// before Linux 5.12, tables of a killed process stay, and are removed, too.
func removeHeldAddresses(o upOptions) error {
	networks, err := serviceNetworks(o.ServiceCIDR)
	if err != nil {
		return nil // nothing has run with it
	}
	const api, dns = 1, 10
	var all []netip.Addr
	each := networks[0].Masked().Addr()
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
	var errs []error
	for _, held := range all {
		if within(networks, held) {
			errs = append(errs, removeHeldAddress(held))
		}
	}
	return errors.Join(errs...)
}

// within reports whether an address is of one of the networks.
func within(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// removeHeldAddress removes one such address and its tables.
func removeHeldAddress(held netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("remove address %s, which is for pods: find lo: %w", held, err)
	}
	has, err := hasAddress(lo, held)
	if err != nil {
		return fmt.Errorf("remove address %s, which is for pods: %w", held, err)
	}
	if has { // without the address there is no one to hear
		if heard, err := isHeard(held); err != nil {
			return fmt.Errorf("remove address %s of the pods' network: find its listeners: %w", held, err)
		} else if heard {
			return nil
		}
	}
	if err := removeGuard(held); errors.Is(err, unix.EPERM) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove rules of address %s, which is for pods: %w", held, err)
	}
	if !has {
		return nil
	}
	mask := net.CIDRMask(held.BitLen(), held.BitLen())
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: held.AsSlice(), Mask: mask}}
	if err := netlink.AddrDel(lo, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s, which is for pods, from lo: %w", held, err)
	}
	return nil
}

func hasAddress(l netlink.Link, want netip.Addr) (bool, error) {
	i := net.Interface{Index: l.Attrs().Index}
	all, err := i.Addrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		prefix, err := netip.ParsePrefix(a.String())
		return err == nil && prefix.Addr() == want
	}), err
}

// isHeard reports whether a process listens at an address that is for pods. The tables in /proc are
// there on each kernel, the socket diagnosis that is to replace them (inet_diag) is a module.
func isHeard(held netip.Addr) (bool, error) {
	proc, err := procfs.NewFS("/proc/thread-self") // this thread's network namespace
	if err != nil {
		return false, err
	}
	//lint:ignore SA1019 inet_diag may be missing
	four, err4 := proc.NetTCP()
	//lint:ignore SA1019 inet_diag may be missing
	six, err6 := proc.NetTCP6()
	const listening = 10 // TCP_LISTEN (linux/include/net/tcp_states.h)
	for _, s := range append(four, six...) {
		if a, _ := netip.AddrFromSlice(s.LocalAddr); s.St == listening && a.Unmap() == held {
			return true, nil
		}
	}
	if errors.Is(err6, fs.ErrNotExist) { // a kernel without IPv6
		err6 = nil
	}
	return false, errors.Join(err4, err6)
}

// removeGuard removes the tables of an address that is for pods: those of nodeaddr.Hold and, for
// the API server and the DNS, of Redirect and Rename. The error is EPERM if they have an owner.
func removeGuard(held netip.Addr) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	name := "coracle-addr-" + strings.ReplaceAll(held.String(), ":", "-")
	for _, name := range []string{name, name + "-443", name + "-53"} {
		table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
		if _, err := c.ListTableOfFamily(name, nftables.TableFamilyINet); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			continue // EINVAL: a kernel without nftables
		} else if err != nil {
			return fmt.Errorf("nftables table %s: %w", name, err)
		}
		c.DelTable(table)
		if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("nftables table %s: %w", name, err)
		}
	}
	return nil
}

// sinkOf is the device of the announcements of the cluster whose API server has this port:
// balancerSink in cluster/cmd/coracle-kube.
func sinkOf(port int) string { return "coracle-lb" + strconv.Itoa(port) }

// announces reports whether load balancers' addresses are announced for such a cluster.
func announces(port int) bool {
	_, err := net.InterfaceByName(sinkOf(port))
	return err == nil
}

// removeAnnouncements has the cluster's program remove what it leaves in the kernel when it ends,
// so that load balancers' addresses are still answered for while it is restarted. As with rules,
// what another cluster has by now stays.
func removeAnnouncements(ctx context.Context, bind string, port int) error {
	if !announces(port) || taken(bind, port) {
		return nil
	}
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	args := []string{"load-balancers", "remove", "--sink", sinkOf(port)}
	if said, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("coracle-kube %s: %w:\n%s", strings.Join(args, " "), err, said)
	}
	return nil
}

// pathsOf is the nftables table of the paths to other nodes' pods: paths.TableOf in
// cluster/overlay/paths.
func pathsOf(port int) string { return "coracle-overlay-" + strconv.Itoa(port) }

// pathsLeft says whether there are paths to other nodes' pods, or may be.
func pathsLeft(port int) bool {
	c, err := nftables.New()
	if err != nil {
		return false // a kernel without nftables has no paths
	}
	_, err = c.ListTableOfFamily(pathsOf(port), nftables.TableFamilyINet)
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL)
}

// removePaths has the cluster's program remove the routes, tunnels and rules that lead to other
// nodes' pods. They stay while it is restarted. What another cluster has by now stays.
func removePaths(ctx context.Context, bind string, port int) error {
	if !pathsLeft(port) || taken(bind, port) {
		return nil
	}
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	args := []string{"overlay", "remove", "--port", strconv.Itoa(port)}
	if said, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("coracle-kube %s: %w:\n%s", strings.Join(args, " "), err, said)
	}
	return nil
}
