package paths

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// Plan is what the kernel is to have. The keys say what an entry is about, the values how it is.
type Plan struct {
	Devices map[Underlay]Device
	// Addresses are those of this node's tunnel end.
	Addresses  map[Address]struct{}
	Routes     map[netip.Prefix]Route
	Neighbours map[Address]MAC
	// Forward says to which address in the underlay frames for a tunnel end go.
	Forward map[Far]netip.Addr
	// Senders are the addresses that peers themselves may send from to pods, without encryption. A
	// peer may take a direct route where this node takes the tunnel, and it chooses among its
	// addresses.
	Senders map[netip.Addr]struct{}
	// Encrypted are the peers of the device that encrypts, without the port of their endpoints.
	Encrypted []wireguard.Peer
	Filter    Filter
}

// Device is a tunnel's device.
type Device struct {
	MTU int
	// Local is the address that tunnelled packets are sent from; zero for the one that the kernel
	// takes.
	Local netip.Addr
	Up    bool
}

// Address is an address on a tunnel's device.
type Address struct {
	Device Underlay
	Addr   netip.Addr
}

// Far is a peer's tunnel end, on a tunnel's device.
type Far struct {
	Device Underlay
	MAC    MAC
}

// Route leads to a range of a peer's pods.
type Route struct {
	// Closed is for a route that leads nowhere; then there is nothing else.
	Closed bool
	Device Underlay // None for Link
	Link   int
	Via    netip.Addr
	// Source is what the node itself uses, unless the caller binds a socket; zero for the link's.
	Source netip.Addr
	// MTU is that of the route; 0 for the device's.
	MTU int
}

// Filter is what the rules know.
type Filter struct {
	// Nodes are peers' addresses. They may send packets by VXLAN, if there is no encryption.
	Nodes map[netip.Addr]struct{}
	// Peers are the ranges of peers' pods.
	Peers map[netip.Prefix]struct{}
	// Own are this node's addresses. Peers are sure to know the way only to these, and on a direct
	// route they take packets of the node itself only from these: others of its addresses are
	// replaced by the first of the family.
	Own []netip.Addr
}

// New computes the plan for a node with peers. It is empty without peers.
//
// Everyone has a tunnel end for each peer, also if a direct route leads there: two nodes need not
// change between both at the same moment, and what arrives by the other way meanwhile is taken.
func New(self Node, peers []Peer) Plan {
	p := Plan{
		Devices: map[Underlay]Device{}, Addresses: map[Address]struct{}{}, Routes: map[netip.Prefix]Route{}, Neighbours: map[Address]MAC{},
		Forward: map[Far]netip.Addr{}, Senders: map[netip.Addr]struct{}{},
		Filter: Filter{Nodes: map[netip.Addr]struct{}{}, Peers: map[netip.Prefix]struct{}{}},
	}
	for _, c := range self.Closed {
		p.Routes[c] = Route{Closed: true}
	}
	if len(peers) == 0 {
		return p
	}
	p.Filter.Own = self.Addresses
	own := map[Underlay]netip.Prefix{} // by the family of the range
	for _, r := range self.Ranges {
		own[UnderlayOf(r.Addr())] = r
	}
	for _, peer := range peers {
		device := peer.device()
		if device == None {
			continue
		}
		d := Device{MTU: max(p.Devices[device].MTU, peer.MTU), Up: true}
		for _, a := range slices.Backward(self.Addresses) { // the first counts
			if UnderlayOf(a) == device {
				d.Local = a
			}
		}
		p.Devices[device] = d
		for _, r := range own {
			p.Addresses[Address{device, End(r)}] = struct{}{}
		}
	}
	for _, peer := range peers {
		p.add(peer, own)
	}
	return p
}

func (p *Plan) add(peer Peer, own map[Underlay]netip.Prefix) {
	device, mac := peer.device(), MACOf(peer.Name)
	for _, a := range peer.Addresses {
		p.Filter.Nodes[a] = struct{}{}
	}
	if peer.Key != (wireguard.Key{}) {
		if device == Encrypted {
			p.encrypt(peer, own)
		}
		return
	}
	for _, a := range peer.Addresses {
		p.Senders[a] = struct{}{}
	}
	if device != None {
		p.Forward[Far{device, mac}] = peer.Tunnel
	}
	for _, path := range peer.Paths {
		p.Filter.Peers[path.Range] = struct{}{}
		hop := hopTo(path.Range, mac)
		if device != None {
			p.Neighbours[Address{device, hop}] = mac
		}
		switch {
		case path.Link != 0:
			p.Routes[path.Range] = Route{Link: path.Link, Via: path.Via}
		case device != None:
			r := Route{Device: device, Via: hop}
			if mine, ok := own[UnderlayOf(path.Range.Addr())]; ok {
				r.Source = End(mine)
			}
			if peer.MTU < p.Devices[device].MTU {
				r.MTU = peer.MTU
			}
			p.Routes[path.Range] = r
		}
	}
}

// encrypt adds a peer that everything is encrypted for. The device knows by the target which peer
// gets a packet, and takes from a peer only what its ranges have sent, so that no node may send
// packets in another way.
func (p *Plan) encrypt(peer Peer, own map[Underlay]netip.Prefix) {
	wire := wireguard.Peer{Key: peer.Key, Endpoint: netip.AddrPortFrom(peer.Tunnel, 0)}
	for _, path := range peer.Paths {
		p.Filter.Peers[path.Range] = struct{}{}
		r := Route{Device: Encrypted}
		if mine, ok := own[UnderlayOf(path.Range.Addr())]; ok {
			r.Source = End(mine)
		}
		if peer.MTU < p.Devices[Encrypted].MTU {
			r.MTU = peer.MTU
		}
		p.Routes[path.Range] = r
		wire.Ranges = append(wire.Ranges, path.Range)
	}
	p.Encrypted = append(p.Encrypted, wire)
}

// hopTo is the next hop to a range in a tunnel, which needs no more than to be a neighbour. For
// IPv6 it is link-local: the kernel refuses one that it has a route by another link to, such as the
// direct route that this one replaces.
func hopTo(r netip.Prefix, mac MAC) netip.Addr {
	if r.Addr().Is4() {
		return End(r)
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 10: mac[0], 11: mac[1], 12: mac[2], 13: mac[3], 14: mac[4], 15: mac[5]})
}

// Empty reports whether the kernel is to have nothing.
func (p *Plan) Empty() bool {
	return len(p.Devices)+len(p.Routes)+len(p.Filter.Nodes)+len(p.Filter.Peers) == 0
}

// union is a filter that lets through what either does, with the addresses of the other one.
func (f Filter) union(other Filter) Filter {
	u := Filter{Nodes: maps.Clone(f.Nodes), Peers: maps.Clone(f.Peers), Own: other.Own}
	maps.Copy(u.Nodes, other.Nodes)
	maps.Copy(u.Peers, other.Peers)
	return u
}
