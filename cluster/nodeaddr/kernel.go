package nodeaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
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
	if err := k.change(unix.RTM_NEWADDR, netlink.Create|netlink.Replace, addr); err != nil {
		return fmt.Errorf("add %s to lo: %w", addr, err)
	}
	return nil
}

// restore gives lo an address that it does not have, and reports whether that was so. Where lo has
// it, the kernel changes nothing and tells no one of a change.
func (k *kernel) restore(addr netip.Addr) (missing bool, err error) {
	err = k.change(unix.RTM_NEWADDR, netlink.Create|netlink.Excl, addr)
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("add %s to lo: %w", addr, err)
	}
	return true, nil
}

// errIPv6Off says why lo takes no address of IPv6.
var errIPv6Off = errors.New("IPv6 is off on lo: set net.ipv6.conf.lo.disable_ipv6=0")

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
	if addr.Is6() && errors.Is(err, unix.EACCES) {
		return errIPv6Off
	}
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

// podRoutes is the protocol (rtm_protocol) of coracled's routes: network/link.go.
const podRoutes = 85

// routed reports whether the route to an address is one of coracled's to a pod.
func (k *kernel) routed(addr netip.Addr) (bool, error) {
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(unix.RTA_DST, addr.AsSlice())
	data, err := attributes.Encode()
	if err != nil {
		return false, err
	}
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(addr), byte(addr.BitLen())
	binary.NativeEndian.PutUint32(header[8:], unix.RTM_F_FIB_MATCH) // the route itself, which has its protocol
	all, err := k.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETROUTE, Flags: netlink.Request}, Data: append(header, data...),
	})
	if err != nil {
		return false, fmt.Errorf("find the route to %s: %w", addr, err)
	}
	for _, m := range all {
		if m.Header.Type == unix.RTM_NEWROUTE && len(m.Data) >= unix.SizeofRtMsg && m.Data[5] == podRoutes && m.Data[7] == unix.RTN_UNICAST {
			return true, nil
		}
	}
	return false, nil
}
