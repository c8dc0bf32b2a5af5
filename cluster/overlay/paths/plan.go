package paths

import "net/netip"

// Plan is what the kernel is to have. The keys say what an entry is about, the values how it is.
type Plan struct {
	// Devices are the tunnels' devices with their MTUs.
	Devices map[Underlay]int
	// Addresses are those of this node's tunnel end.
	Addresses  map[Address]struct{}
	Routes     map[netip.Prefix]Route
	Neighbours map[Address]MAC
	// Forward says to which address in the underlay frames for a tunnel end go.
	Forward map[Far]netip.Addr
	Filter  Filter
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
	// Nodes may send tunnelled packets.
	Nodes map[netip.Addr]struct{}
	// Peers are the ranges of peers' pods, Own those of this node's.
	Peers, Own map[netip.Prefix]struct{}
}

// New computes the plan for a node with peers. It is empty without peers.
//
// Everyone has a tunnel end for each peer, also if a direct route leads there: two nodes need not
// change between both at the same moment, and what arrives by the other way meanwhile is taken.
func New(self Node, peers []Peer) Plan {
	p := Plan{
		Devices: map[Underlay]int{}, Addresses: map[Address]struct{}{}, Routes: map[netip.Prefix]Route{}, Neighbours: map[Address]MAC{},
		Forward: map[Far]netip.Addr{},
		Filter:  Filter{Nodes: map[netip.Addr]struct{}{}, Peers: map[netip.Prefix]struct{}{}, Own: map[netip.Prefix]struct{}{}},
	}
	if len(peers) == 0 {
		return p
	}
	own := map[Underlay]netip.Prefix{} // by the family of the range
	for _, r := range self.Ranges {
		p.Filter.Own[r] = struct{}{}
		own[UnderlayOf(r.Addr())] = r
	}
	for _, peer := range peers {
		device := UnderlayOf(peer.Tunnel)
		if device != None {
			p.Devices[device] = max(p.Devices[device], peer.MTU)
		}
	}
	// The kernel takes an address on several devices, but answers by the first.
	if device := p.main(); device != None {
		for _, r := range own {
			p.Addresses[Address{device, End(r)}] = struct{}{}
		}
	}
	for _, peer := range peers {
		p.add(peer, own)
	}
	return p
}

// main is the device with this node's addresses.
func (p *Plan) main() Underlay {
	for _, u := range []Underlay{IPv4, IPv6} {
		if _, ok := p.Devices[u]; ok {
			return u
		}
	}
	return None
}

func (p *Plan) add(peer Peer, own map[Underlay]netip.Prefix) {
	for _, a := range peer.Addresses {
		p.Filter.Nodes[a] = struct{}{}
	}
	device, mac := UnderlayOf(peer.Tunnel), MACOf(peer.Name)
	if device != None {
		p.Forward[Far{device, mac}] = peer.Tunnel
	}
	for _, path := range peer.Paths {
		p.Filter.Peers[path.Range] = struct{}{}
		if device != None {
			p.Neighbours[Address{device, End(path.Range)}] = mac
		}
		switch {
		case path.Link != 0:
			p.Routes[path.Range] = Route{Link: path.Link, Via: path.Via}
		case device != None:
			r := Route{Device: device, Via: End(path.Range)}
			if mine, ok := own[UnderlayOf(path.Range.Addr())]; ok {
				r.Source = End(mine)
			}
			if peer.MTU < p.Devices[device] {
				r.MTU = peer.MTU
			}
			p.Routes[path.Range] = r
		}
	}
}

// Empty reports whether the kernel is to have nothing.
func (p *Plan) Empty() bool {
	return len(p.Devices)+len(p.Routes)+len(p.Filter.Nodes)+len(p.Filter.Peers) == 0
}
