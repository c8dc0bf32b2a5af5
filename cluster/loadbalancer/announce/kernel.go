package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/ipnet"
)

// link is an interface that addresses are announced on.
type link struct {
	index int
	name  string
	mac   net.HardwareAddr
}

// entry is a proxied neighbour.
type entry struct {
	address netip.Addr
	link    int
}

// state is what the kernel has.
type state struct {
	name      string       // the sink's
	sink      netlink.Link // nil if there is none
	routes    map[netip.Addr]bool
	entries   map[entry]bool
	marked    map[entry]bool // those of entries that have our protocol
	addresses []netlink.Addr // of all interfaces
	before    record
	flushed   bool // the sink was down, by which it loses its routes
	reset     int  // sysctls that another program has set to something else
}

// readState reads what the kernel has of this sink, and the machine's addresses.
func readState(sink string) (*state, error) {
	s := &state{name: sink, routes: map[netip.Addr]bool{}, entries: map[entry]bool{}, marked: map[entry]bool{}, before: record{}}
	var err error
	if s.addresses, err = list(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) }); err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	if err := s.readEntries(); err != nil {
		return nil, err
	}
	l, err := netlink.LinkByName(sink)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", sink, err)
	}
	if l.Type() != "veth" {
		return nil, fmt.Errorf("interface %s is a %s of another program: rename it", sink, l.Type())
	}
	s.sink = l
	s.flushed = l.Attrs().RawFlags&unix.IFF_UP == 0
	s.before = parseRecord(l.Attrs().Alias)
	s.routes, err = routesTo(l)
	return s, err
}

// readEntries reads all proxied neighbours of this machine.
func (s *state) readEntries() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		proxied, err := list(func() ([][]byte, error) {
			request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
			request.AddData(&netlink.Ndmsg{Family: uint8(family), Flags: netlink.NTF_PROXY})
			return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
		})
		if err != nil {
			return fmt.Errorf("list proxied neighbours: %w", err)
		}
		for _, data := range proxied {
			if err := s.readEntry(data, family); err != nil {
				return fmt.Errorf("list proxied neighbours: %w", err)
			}
		}
	}
	return nil
}

// readEntry notes a proxied neighbour, and whether it has the protocol that ours have. The netlink
// package does not read that.
func (s *state) readEntry(data []byte, family int) error {
	n, err := netlink.NeighDeserialize(data)
	if err != nil {
		return err
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Family != family || n.Flags != netlink.NTF_PROXY {
		return nil
	}
	if family == netlink.FAMILY_V4 {
		a = a.Unmap()
	}
	e := entry{a, n.LinkIndex}
	s.entries[e] = true
	attributes, err := nl.ParseRouteAttr(data[(&netlink.Ndmsg{}).Len():])
	for _, each := range attributes {
		if each.Attr.Type == netlink.NDA_PROTOCOL && len(each.Value) > 0 && each.Value[0] == routeProtocol {
			s.marked[e] = true
		}
	}
	return err
}

// add makes a proxied neighbour. Before Linux 5.0 it gets no protocol.
func (e entry) add() error {
	request := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	family := netlink.FAMILY_V4
	if e.address.Is6() {
		family = netlink.FAMILY_V6
	}
	request.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(e.link), Flags: netlink.NTF_PROXY})
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, e.address.AsSlice()))
	request.AddData(nl.NewRtAttr(netlink.NDA_PROTOCOL, []byte{routeProtocol}))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// routesTo returns the addresses with a route of ours to a sink: those that it is for. Another
// program may have routes to it, too.
func routesTo(sink netlink.Link) (map[netip.Addr]bool, error) {
	routes, err := list(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: sink.Attrs().Index}, netlink.RT_FILTER_OIF)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", sink.Attrs().Name, err)
	}
	all := map[netip.Addr]bool{}
	for _, r := range routes {
		if to, ok := ipnet.Prefix(r.Dst); ok && to.IsSingleIP() && r.Protocol == routeProtocol {
			all[to.Addr()] = true
		}
	}
	return all, nil
}

// recall takes over what an announcer knows of sysctls, and the sink does not: another program may
// have removed the sink.
func (s *state) recall(before record) {
	for name, value := range before {
		if _, known := s.before[name]; !known {
			s.before[name] = value
		}
	}
}

// index is the sink's, 0 if there is none.
func (s *state) index() int {
	if s.sink == nil {
		return 0
	}
	return s.sink.Attrs().Index
}

// list repeats a listing that changes have interrupted: pods come and go.
func list[T any](once func() ([]T, error)) (all []T, err error) {
	for range 10 {
		if all, err = once(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, err
}

// route is that of an address to the sink.
func (s *state) route(address netip.Addr) *netlink.Route {
	return &netlink.Route{
		Dst:       &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())},
		LinkIndex: s.sink.Attrs().Index, Scope: netlink.SCOPE_LINK, Protocol: routeProtocol,
	}
}

// withdraw ends the announcement of all addresses but those that are wanted.
func (s *state) withdraw(wanted map[netip.Addr]bool) error {
	var errs []error
	for address := range s.routes {
		if !wanted[address] {
			errs = append(errs, s.forget(address))
		}
	}
	return errors.Join(errs...)
}

// forget ends the announcement of an address. The route goes last: it says that the entries are
// ours.
func (s *state) forget(address netip.Addr) error {
	if err := s.silence(address, 0); err != nil {
		return err
	}
	if err := netlink.RouteDel(s.route(address)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route to %s: %w", address, err)
	}
	delete(s.routes, address)
	return nil
}

// silence removes the entries of an address on all interfaces but one.
func (s *state) silence(address netip.Addr, but int) error {
	for e := range s.entries {
		if e.address != address || e.link == but {
			continue
		}
		err := netlink.NeighDel(&netlink.Neigh{LinkIndex: e.link, IP: address.AsSlice(), Flags: netlink.NTF_PROXY})
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("stop answering for %s: %w", address, err)
		}
		delete(s.entries, e)
	}
	return nil
}

// announce has the kernel answer for an address on the named interface, or that whose network has
// it. came says that it did not before. ours says that this process has announced the address: then
// an entry without a route is ours.
func (s *state) announce(address netip.Addr, named string, ours bool) (l link, came bool, err error) {
	defer func() {
		if err != nil && (s.routes[address] || ours) { // where it was announced before is wrong now
			err = errors.Join(err, s.silence(address, 0))
		}
	}()
	if l, err = s.pick(address, named); err != nil {
		return link{}, false, err
	}
	if e := (entry{address, l.index}); s.entries[e] && !s.marked[e] && !s.routes[address] && !ours && !s.flushed {
		return link{}, false, fmt.Errorf("another program has this node answer for %s on %s: remove that with 'ip neigh del proxy %s dev %s', "+
			"or leave the address out of the pool", address, l.name, address, l.name)
	}
	if err := s.ensureSink(); err != nil {
		return link{}, false, err
	}
	if err := s.ensureSysctls(l, address.Is6()); err != nil {
		return link{}, false, err
	}
	if !s.routes[address] {
		if err := netlink.RouteAdd(s.route(address)); errors.Is(err, unix.EEXIST) {
			return link{}, false, fmt.Errorf("this node has another route to %s: remove it, or leave the address out of the pool", address)
		} else if err != nil {
			return link{}, false, fmt.Errorf("add a route to %s: %w", address, err)
		}
		s.routes[address] = true
	}
	if err := s.silence(address, l.index); err != nil {
		return link{}, false, err
	}
	if s.entries[entry{address, l.index}] {
		return l, false, nil
	}
	if err := (entry{address, l.index}).add(); err != nil {
		return link{}, false, fmt.Errorf("answer for %s on %s: %w", address, l.name, err)
	}
	s.entries[entry{address, l.index}] = true
	return l, true, nil
}

// routeProtocol marks Coracle's routes (network/link.go has the same) and entries.
const routeProtocol = 85

// pick returns the interface to announce an address on: the named one, or that with the smallest
// network that has the address.
func (s *state) pick(address netip.Addr, named string) (link, error) {
	best, bits := 0, -1
	for _, a := range s.addresses {
		network, ok := ipnet.Prefix(a.IPNet)
		if !ok || s.sink != nil && a.LinkIndex == s.index() {
			continue
		}
		if network.Addr() == address {
			return link{}, fmt.Errorf("this node has %s itself: leave it out of the pool", address)
		}
		if network.IsSingleIP() || !network.Contains(address) || network.Bits() < bits {
			continue
		}
		if network.Bits() > bits || a.LinkIndex < best {
			best, bits = a.LinkIndex, network.Bits()
		}
	}
	var l netlink.Link
	var err error
	switch {
	case named != "":
		if l, err = netlink.LinkByName(named); err != nil {
			return link{}, fmt.Errorf("--load-balancer-interface %s: %w", named, err)
		}
	case best == 0:
		return link{}, ErrNoInterface
	default:
		if l, err = netlink.LinkByIndex(best); err != nil {
			return link{}, fmt.Errorf("find the interface of %s: %w", address, err)
		}
	}
	attrs := l.Attrs()
	switch {
	case attrs.RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK|unix.IFF_POINTOPOINT) != 0:
		return link{}, fmt.Errorf("interface %s has no neighbours: have a router send packets for %s to this node", attrs.Name, address)
	case attrs.RawFlags&unix.IFF_UP == 0:
		return link{}, fmt.Errorf("interface %s is down", attrs.Name)
	}
	return link{attrs.Index, attrs.Name, attrs.HardwareAddr}, nil
}

// ensureSink makes the device that drops what it gets.
func (s *state) ensureSink() error {
	if s.sink == nil {
		far := strings.Replace(s.name, "lb", "lx", 1)
		if far == s.name {
			return fmt.Errorf("sink %q: the name must have lb in it", s.name)
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: s.name}, PeerName: far}
		err := netlink.LinkAdd(veth)
		if errors.Is(err, unix.EEXIST) { // another program has renamed the sink
			if other, e := netlink.LinkByName(far); e == nil && other.Type() == "veth" {
				err = errors.Join(netlink.LinkDel(other), netlink.LinkAdd(veth))
			}
		}
		if err != nil {
			return fmt.Errorf("make interface %s: %w", s.name, err)
		}
		if s.sink, err = netlink.LinkByName(s.name); err != nil {
			return fmt.Errorf("make interface %s: %w", s.name, err)
		}
		if text := s.before.String(); text != "" {
			if err := netlink.LinkSetAlias(s.sink, text); err != nil {
				return fmt.Errorf("record what sysctls were: %w", err)
			}
		}
	}
	if s.sink.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	// It looks for no neighbours: packets are dropped at once.
	if err := errors.Join(netlink.LinkSetARPOff(s.sink), netlink.LinkSetUp(s.sink)); err != nil {
		return fmt.Errorf("set interface %s up: %w", s.name, err)
	}
	s.sink.Attrs().RawFlags |= unix.IFF_UP
	return nil
}

// remove ends all announcements, and leaves the machine as it was.
func (s *state) remove() error {
	if err := removeRefusal(s.name); err != nil || s.sink == nil {
		return err
	}
	if err := errors.Join(s.withdraw(nil), s.restore()); err != nil {
		return err
	}
	if err := netlink.LinkDel(s.sink); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", s.name, err)
	}
	return nil
}

// Remove ends what an announcer with this sink has left. It is no error if there is nothing.
func Remove(sink string) error {
	s, err := readState(sink)
	if err == nil {
		err = s.remove()
	}
	if err != nil {
		return fmt.Errorf("end the announcement of load balancers' addresses: %w", err)
	}
	return nil
}
