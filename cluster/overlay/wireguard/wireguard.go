// Package wireguard configures WireGuard devices of the kernel over generic netlink
// (linux/wireguard.h).
package wireguard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrMissing says that there can be no WireGuard device.
var ErrMissing = errors.New("this machine's kernel has no WireGuard (CONFIG_WIREGUARD, module wireguard)")

// Device is how a device is to be.
type Device struct {
	Private Key
	Port    int // UDP
	Peers   []Peer
}

// Peer is the far end of a tunnel.
type Peer struct {
	Key      Key
	Endpoint netip.AddrPort
	// Ranges are what is sent to the peer, and what its packets may have as source. A range belongs
	// to the last peer that names it.
	Ranges []netip.Prefix
}

// Equal reports whether two peers are the same.
func (p Peer) Equal(other Peer) bool {
	return p.Key == other.Key && p.Endpoint == other.Endpoint && slices.Equal(p.Ranges, other.Ranges)
}

// Overhead is how many bytes a tunnel adds to a packet: the outer header of IPv4 (20) or IPv6 (40),
// UDP (8), type, receiver and counter (16), and the authentication tag (16). What is encrypted is
// padded to 16 bytes, but not beyond the MTU.
func Overhead(endpoint netip.Addr) int {
	if endpoint.Is4() {
		return 60
	}
	return 80
}

// Kernel makes and configures devices in the network namespace that it was opened in. Its methods
// are for one goroutine.
type Kernel struct {
	family  uint16
	links   *netlink.Handle
	sockets map[int]*nl.SocketHandle
}

// Open fails with ErrMissing where the kernel has no WireGuard. It has the kernel load the module.
func Open() (*Kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	f, err := h.GenlFamilyGet("wireguard")
	if err != nil {
		h.Close()
		if errors.Is(err, unix.ENOENT) {
			return nil, ErrMissing
		}
		return nil, fmt.Errorf("ask the kernel for WireGuard: %w", err)
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return &Kernel{f.ID, h, map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: {Socket: s}}}, nil
}

// Close closes the sockets. Devices stay.
func (k *Kernel) Close() {
	k.links.Close()
	for _, s := range k.sockets {
		s.Close()
	}
}

// Add makes a device that is down and has no key.
func (k *Kernel) Add(name string, mtu int) (index int, err error) {
	l := &netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}}
	err = k.links.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) { // unknown device type
		err = ErrMissing
	}
	if err != nil {
		return 0, fmt.Errorf("make device %s: %w", name, err)
	}
	return l.Index, nil
}

// The messages of linux/wireguard.h.
const (
	cmdGet = 0
	cmdSet = 1

	deviceIndex, devicePrivate, devicePort, devicePeers        = 1, 3, 6, 8
	peerKey, peerFlags, peerEndpoint, peerRanges               = 1, 3, 4, 9
	rangeFamily, rangeAddress, rangeBits                       = 1, 2, 3
	flagRemove, flagReplaceRanges                       uint32 = 1, 2

	// atOnce is how many peers a message has: each takes some 200 bytes, and a nested attribute has
	// 64 KiB.
	atOnce = 100
)

// Set makes a device what it is to be. The sessions of peers that stay go on.
func (k *Kernel) Set(index int, want Device) error {
	have, err := k.keys(index)
	if err != nil {
		return fmt.Errorf("list WireGuard peers: %w", err)
	}
	stays := map[Key]bool{}
	for _, p := range want.Peers {
		stays[p.Key] = true
	}
	var peers []*nl.RtAttr
	for _, key := range have { // first: another peer may have one of their ranges by now
		if !stays[key] {
			peers = append(peers, removal(key))
		}
	}
	for _, p := range want.Peers {
		peers = append(peers, p.attribute())
	}
	own := []*nl.RtAttr{
		nl.NewRtAttr(devicePrivate, want.Private[:]), nl.NewRtAttr(devicePort, nl.Uint16Attr(uint16(want.Port))),
	}
	for first := true; first || len(peers) > 0; first = false {
		part := peers[:min(atOnce, len(peers))]
		peers = peers[len(part):]
		if err := k.set(index, own, part); err != nil {
			return fmt.Errorf("configure WireGuard: %w", err)
		}
		own = nil
	}
	return nil
}

func (k *Kernel) set(index int, own, peers []*nl.RtAttr) error {
	req := k.request(cmdSet, unix.NLM_F_ACK, index)
	for _, a := range own {
		req.AddData(a)
	}
	list := nl.NewRtAttr(devicePeers|unix.NLA_F_NESTED, nil)
	for _, p := range peers {
		list.AddChild(p)
	}
	req.AddData(list)
	_, err := req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

func (k *Kernel) request(command uint8, flags, index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(int(k.family), flags)
	req.Sockets = k.sockets
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	req.AddData(nl.NewRtAttr(deviceIndex, nl.Uint32Attr(uint32(index))))
	return req
}

// keys are those of the device's peers.
func (k *Kernel) keys(index int) ([]Key, error) {
	messages, err := k.request(cmdGet, unix.NLM_F_DUMP, index).Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	var all []Key
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			return nil, errors.New("a message is too short")
		}
		err := each(m[nl.SizeofGenlmsg:], devicePeers, func(list []byte) error {
			return each(list, -1, func(peer []byte) error {
				return each(peer, peerKey, func(text []byte) error {
					var key Key
					if copy(key[:], text) < len(key) {
						return errors.New("a key is too short")
					}
					all = append(all, key)
					return nil
				})
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// each calls f with the values of the attributes of one kind, -1 for all.
func each(data []byte, kind int, f func([]byte) error) error {
	attributes, err := nl.ParseRouteAttr(data)
	if err != nil {
		return err
	}
	for _, a := range attributes {
		if got := int(a.Attr.Type &^ unix.NLA_F_NESTED); got != kind && kind >= 0 {
			continue
		}
		if err := f(a.Value); err != nil {
			return err
		}
	}
	return nil
}

func removal(key Key) *nl.RtAttr {
	p := nl.NewRtAttr(unix.NLA_F_NESTED, nil)
	p.AddRtAttr(peerKey, key[:])
	p.AddRtAttr(peerFlags, nl.Uint32Attr(flagRemove))
	return p
}

func (p Peer) attribute() *nl.RtAttr {
	a := nl.NewRtAttr(unix.NLA_F_NESTED, nil)
	a.AddRtAttr(peerKey, p.Key[:])
	a.AddRtAttr(peerFlags, nl.Uint32Attr(flagReplaceRanges))
	a.AddRtAttr(peerEndpoint, sockaddr(p.Endpoint))
	ranges := a.AddRtAttr(peerRanges|unix.NLA_F_NESTED, nil)
	for _, r := range p.Ranges {
		family := uint16(unix.AF_INET)
		if r.Addr().Is6() {
			family = unix.AF_INET6
		}
		one := ranges.AddRtAttr(unix.NLA_F_NESTED, nil)
		one.AddRtAttr(rangeFamily, nl.Uint16Attr(family))
		one.AddRtAttr(rangeAddress, r.Masked().Addr().AsSlice())
		one.AddRtAttr(rangeBits, nl.Uint8Attr(uint8(r.Bits())))
	}
	return a
}

// sockaddr is struct sockaddr_in or sockaddr_in6.
func sockaddr(a netip.AddrPort) []byte {
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.NativeEndian, v) } // a Buffer takes everything
	if a.Addr().Is4() {
		put(uint16(unix.AF_INET))
		b.Write(binary.BigEndian.AppendUint16(nil, a.Port()))
		b.Write(a.Addr().AsSlice())
		b.Write(make([]byte, 8))
		return b.Bytes()
	}
	put(uint16(unix.AF_INET6))
	b.Write(binary.BigEndian.AppendUint16(nil, a.Port()))
	put(uint32(0))
	b.Write(a.Addr().AsSlice())
	put(uint32(0))
	return b.Bytes()
}
