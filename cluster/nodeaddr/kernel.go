package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// kernel asks for and changes addresses and routes (rtnetlink(7)).
type kernel struct {
	*netlink.Conn
	lo uint32
}

func dialKernel() (*kernel, error) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return &kernel{conn, uint32(lo.Index)}, nil
}

func family(addr netip.Addr) byte {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// add gives lo an address. One that a killed process has left is no error.
func (k *kernel) add(addr netip.Addr) error {
	err := k.change(unix.RTM_NEWADDR, netlink.Create|netlink.Replace, addr)
	if addr.Is6() && errors.Is(err, unix.EACCES) {
		return errors.New("IPv6 is off on lo: set net.ipv6.conf.lo.disable_ipv6=0")
	}
	if err != nil {
		return fmt.Errorf("add %s to lo: %w", addr, err)
	}
	return nil
}

// remove takes an address from lo. A missing one is no error.
func (k *kernel) remove(addr netip.Addr) error {
	if err := k.change(unix.RTM_DELADDR, 0, addr); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from lo: %w", addr, err)
	}
	return nil
}

func (k *kernel) change(kind netlink.HeaderType, flags netlink.HeaderFlags, addr netip.Addr) error {
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.IFA_LOCAL, addr.AsSlice())
	attributes.Bytes(unix.IFA_ADDRESS, addr.AsSlice())
	attributes.Uint32(unix.IFA_FLAGS, unix.IFA_F_NODAD|unix.IFA_F_PERMANENT)
	data, err := attributes.Encode()
	if err != nil {
		return err
	}
	header := []byte{family(addr), byte(addr.BitLen()), 0, unix.RT_SCOPE_HOST} // struct ifaddrmsg
	header = binary.NativeEndian.AppendUint32(header, k.lo)
	_, err = k.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: append(header, data...),
	})
	return err
}

// checkFree returns ErrTaken if another interface than lo has one of the addresses.
func (k *kernel) checkFree(addrs []netip.Addr) error {
	const size = unix.SizeofIfAddrmsg
	all, err := k.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETADDR, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, size),
	})
	if err != nil {
		return fmt.Errorf("list the node's addresses: %w", err)
	}
	for _, m := range all {
		if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < size || binary.NativeEndian.Uint32(m.Data[4:]) == k.lo {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[size:])
		if err != nil {
			return err
		}
		for attributes.Next() {
			if t := attributes.Type(); t != unix.IFA_LOCAL && t != unix.IFA_ADDRESS {
				continue
			}
			if addr, ok := netip.AddrFromSlice(attributes.Bytes()); ok && slices.Contains(addrs, addr) {
				return ErrTaken
			}
		}
		if err := attributes.Err(); err != nil {
			return err
		}
	}
	return nil
}

// uplinks returns the indexes of the interfaces by which others reach the node: its network cards, and those with a
// default route, in whichever routing table. The halves of the address space, which some VPNs have instead, count
// as one.
func (k *kernel) uplinks() ([]uint32, error) {
	all, err := k.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump}, Data: make([]byte, unix.SizeofIfInfomsg),
	})
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links, err := cards(all)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, fam := range []byte{unix.AF_INET, unix.AF_INET6} {
		header := make([]byte, unix.SizeofRtMsg)
		header[0] = fam
		routes, err := k.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request | netlink.Dump}, Data: header,
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, m := range routes {
			if m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg {
				continue
			}
			if bits, kind := m.Data[1], m.Data[7]; bits > 1 || kind != unix.RTN_UNICAST {
				continue
			}
			if links, err = routeLinks(links, m.Data[unix.SizeofRtMsg:]); err != nil {
				return nil, fmt.Errorf("list routes: %w", err)
			}
		}
	}
	slices.Sort(links)
	return slices.Compact(links), nil
}

// cards returns which of the interfaces are network cards, or made of them. A pod has no such interface on the node, and
// a node without a default route is still reached by them. What is virtual has a kind (IFLA_INFO_KIND).
func cards(interfaces []netlink.Message) ([]uint32, error) {
	var links []uint32
	for _, m := range interfaces {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || binary.NativeEndian.Uint16(m.Data[2:]) == unix.ARPHRD_LOOPBACK {
			continue
		}
		attributes, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		kind := ""
		for attributes.Next() {
			if attributes.Type() == unix.IFLA_LINKINFO {
				attributes.Nested(func(info *netlink.AttributeDecoder) error {
					for info.Next() {
						if info.Type() == unix.IFLA_INFO_KIND {
							kind = info.String()
						}
					}
					return nil
				})
			}
		}
		if err := attributes.Err(); err != nil {
			return nil, err
		}
		if kind == "" || slices.Contains([]string{"bond", "team", "vlan"}, kind) {
			links = append(links, binary.NativeEndian.Uint32(m.Data[4:])) // ifi_index
		}
	}
	return links, nil
}

// routeLinks appends the interfaces of a route, which may have several next hops.
func routeLinks(links []uint32, attributes []byte) ([]uint32, error) {
	decoder, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return nil, err
	}
	for decoder.Next() {
		switch decoder.Type() {
		case unix.RTA_OIF:
			links = append(links, decoder.Uint32())
		case unix.RTA_MULTIPATH:
			// A list of struct rtnexthop: length, flags, hops, interface; attributes follow each.
			for hops := decoder.Bytes(); len(hops) >= unix.SizeofRtNexthop; {
				length := int(binary.NativeEndian.Uint16(hops))
				links = append(links, binary.NativeEndian.Uint32(hops[4:]))
				if length < unix.SizeofRtNexthop || length > len(hops) {
					break
				}
				hops = hops[min((length+3)&^3, len(hops)):]
			}
		}
	}
	return links, decoder.Err()
}

// subscription hears of changes of default routes and of no others.
type subscription struct{ *netlink.Conn }

func subscribe() (*subscription, error) {
	groups := uint32(1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1))
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("follow changes of routes: %w", err)
	}
	// Each pod that starts adds routes. They must not wake this process.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: unix.SizeofNlMsghdr + 1, Size: 1}, // rtm_dst_len
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: 1, SkipTrue: 1},
		bpf.RetConstant{Val: 0xffffffff},
		bpf.RetConstant{Val: 0},
	})
	if err == nil {
		err = conn.SetBPF(filter)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow changes of routes: %w", err), conn.Close())
	}
	return &subscription{conn}, nil
}

// wait returns when routes have changed, or may have.
func (s *subscription) wait() error {
	_, err := s.Receive()
	if errors.Is(err, unix.ENOBUFS) { // some messages were lost
		return nil
	}
	return err
}
