package firewall

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// HostPort is a port of the host that leads to a port of a pod. Any address is the zero Addr.
type HostPort struct {
	Protocol string // one that ProtocolNumber knows
	IP       netip.Addr
	Port     uint16
	Target   uint16 // port of the pod
}

// PodPort is one host port with the pod's address of one family.
type PodPort struct {
	HostPort
	Pod netip.Addr
}

// protocols that host ports can have, with their numbers.
var protocols = map[string]byte{"tcp": 6, "udp": 17, "sctp": 132}

// ProtocolNumber returns the number of a protocol that host ports can have: tcp, udp or sctp.
func ProtocolNumber(name string) (number byte, ok bool) {
	number, ok = protocols[name]
	return number, ok
}

// maps are those of host ports.
func (f *Table) maps() []*nftables.Set {
	mapOf := func(name string, id uint32, addr nftables.SetDatatype, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: f.table(), Name: name, ID: id, IsMap: true, Concatenation: true,
			KeyType:  nftables.MustConcatSetType(key...),
			DataType: nftables.MustConcatSetType(addr, nftables.TypeInetService),
		}
	}
	proto, port, ip4, ip6 := nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeIPAddr, nftables.TypeIP6Addr
	return []*nftables.Set{
		mapOf("ports4", 1, ip4, proto, port),
		mapOf("ports6", 2, ip6, proto, port),
		mapOf("addrports4", 3, ip4, ip4, proto, port),
		mapOf("addrports6", 4, ip6, ip6, proto, port),
	}
}

// portElements sorts host ports into the maps.
func portElements(ports []PodPort) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{}
	for _, p := range ports {
		family := "4"
		if p.Pod.Is6() {
			family = "6"
		}
		name, key := "ports"+family, []byte(nil)
		if p.IP.IsValid() {
			name, key = "addr"+name, p.IP.AsSlice()
		}
		key = append(key, protocols[p.Protocol], 0, 0, 0)
		key = appendPort(key, p.Port)
		elements[name] = append(elements[name], nftables.SetElement{Key: key, Val: appendPort(p.Pod.AsSlice(), p.Target)})
	}
	return elements
}

// appendPort appends a port as a field of a concatenation, which fills 4 bytes.
func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// PortsOf returns the host ports that lead to one of the addresses. Without a table there are none.
func (f *Table) PortsOf(ips []netip.Addr) ([]HostPort, error) {
	if !f.Exists() {
		return nil, nil
	}
	c, err := open()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	var ports []HostPort
	for _, m := range f.maps() {
		elements, err := c.GetSetElements(m)
		if err != nil {
			return nil, fmt.Errorf("list nftables map %s %s: %w", f.name, m.Name, err)
		}
		for _, e := range elements {
			p, pod, ok := portOf(e)
			// A port of any address is in the maps of both families.
			if ok && slices.Contains(ips, pod) && !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	return ports, nil
}

// portOf parses an element that portElements has written.
func portOf(e nftables.SetElement) (p HostPort, pod netip.Addr, ok bool) {
	const fields = 8 // protocol and port, 4 bytes each
	if len(e.Key) < fields || len(e.Val) < 4 {
		return p, pod, false
	}
	address, key := e.Key[:len(e.Key)-fields], e.Key[len(e.Key)-fields:]
	if len(address) > 0 {
		if p.IP, ok = netip.AddrFromSlice(address); !ok {
			return p, pod, false
		}
	}
	for name, number := range protocols {
		if number == key[0] {
			p.Protocol = name
		}
	}
	p.Port = binary.BigEndian.Uint16(key[4:])
	p.Target = binary.BigEndian.Uint16(e.Val[len(e.Val)-4:])
	pod, ok = netip.AddrFromSlice(e.Val[:len(e.Val)-4])
	return p, pod, ok && p.Protocol != ""
}
