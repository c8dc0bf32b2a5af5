// Package netdev moves network devices into a container's network namespace,
// config-linux.md#network-devices.
package netdev

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Move moves devices of this process's network namespace, by name, to another one, which is
// open as ns. There they have their new names and their permanent addresses, and are up. If one
// cannot be moved, those moved before it stay where they are: the kernel brings physical ones
// back when the namespace ends.
func Move(devices map[string]specs.LinuxNetDevice, ns int) error {
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		to := devices[name].Name
		if to == "" {
			to = name
		}
		if err := move(name, to, ns); err != nil {
			return fmt.Errorf("linux.netDevices.%s: %w", name, err)
		}
	}
	return nil
}

func move(name, to string, ns int) error {
	link, err := netlink.LinkByName(name)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return errors.New("there is no such device on the host")
	}
	if err != nil {
		return fmt.Errorf("find the device: %w", err)
	}
	there, err := netlink.NewHandleAt(netns.NsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open the container's network namespace: %w", err)
	}
	defer there.Close()
	// The kernel would move it and only then fail to rename it.
	if _, err := there.LinkByName(to); err == nil {
		return fmt.Errorf("the container's network namespace has a device %s already: %w", to, unix.EEXIST)
	}
	// While it is up: IPv6 forgets them when it goes down.
	addresses, err := addressesOf(link)
	if err != nil {
		return fmt.Errorf("read the device's addresses: %w", err)
	}
	// No one on the host shall see it change while it is in use.
	if err := netlink.LinkSetDown(link); err != nil {
		return fmt.Errorf("set the device down: %w", err)
	}
	if err := enter(link.Attrs().Index, to, ns); err != nil {
		return fmt.Errorf("move the device to the container: %w", err)
	}
	return settle(there, to, addresses)
}

// addressesOf asks again when they change while they are read.
func addressesOf(link netlink.Link) ([]netlink.Addr, error) {
	const tries = 8
	for try := 1; ; try++ {
		list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if try == tries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
}

// enter moves and renames in one step, so that neither name is ever another device's.
func enter(index int, to string, ns int) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(to)))
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(ns))))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// settle sets the device up and gives it the addresses that someone configured, which it lost by
// moving. In the other order, the kernel may drop an IPv6 address as the device comes up
// (addrconf_permanent_addr in net/ipv6/addrconf.c).
func settle(there *netlink.Handle, name string, addresses []netlink.Addr) error {
	link, err := there.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find the device in the container: %w", err)
	}
	if err := there.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the device up: %w", err)
	}
	for _, a := range addresses {
		if a.Flags&unix.IFA_F_PERMANENT == 0 || a.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		if err := there.AddrAdd(link, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return fmt.Errorf("give the device its address %s: %w", a.IPNet, err)
		}
	}
	return nil
}
