package paths

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
	self   = Node{
		Name: "a", Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.9.0.1")},
		Ranges: []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:244:1::/64")},
	}
)

func TestPlan(t *testing.T) {
	b, c := MACOf("b"), MACOf("c")
	got := New(self, []Peer{
		{
			Name: "b", Addresses: []netip.Addr{addr("10.0.0.2")}, Tunnel: addr("10.0.0.2"), MTU: 1450,
			Paths: []Path{{Range: prefix("10.244.2.0/24"), Via: addr("10.0.0.2"), Link: 3}, {Range: prefix("fd00:244:2::/64")}},
		},
		{
			Name: "c", Addresses: []netip.Addr{addr("10.1.0.3")}, Tunnel: addr("10.1.0.3"), MTU: 1350,
			Paths: []Path{{Range: prefix("10.244.3.0/24")}},
		},
		{
			Name: "d", Addresses: []netip.Addr{addr("2001:db8::4")}, Tunnel: addr("2001:db8::4"), MTU: 1430,
			Paths: []Path{{Range: prefix("10.244.4.0/24")}},
		},
	})
	want := Plan{
		Devices: map[Underlay]Device{IPv4: {MTU: 1450, Local: addr("10.0.0.1"), Up: true}, IPv6: {MTU: 1430, Up: true}},
		Addresses: map[Address]struct{}{
			{IPv4, addr("10.244.1.0")}: {}, {IPv4, addr("fd00:244:1::")}: {}, {IPv6, addr("10.244.1.0")}: {}, {IPv6, addr("fd00:244:1::")}: {},
		},
		Routes: map[netip.Prefix]Route{
			prefix("10.244.2.0/24"):   {Link: 3, Via: addr("10.0.0.2")},
			prefix("fd00:244:2::/64"): {Device: IPv4, Via: hopTo(prefix("fd00:244:2::/64"), b), Source: addr("fd00:244:1::")},
			prefix("10.244.3.0/24"):   {Device: IPv4, Via: addr("10.244.3.0"), Source: addr("10.244.1.0"), MTU: 1350},
			prefix("10.244.4.0/24"):   {Device: IPv6, Via: addr("10.244.4.0"), Source: addr("10.244.1.0")},
		},
		Neighbours: map[Address]MAC{
			{IPv4, addr("10.244.2.0")}: b, {IPv4, hopTo(prefix("fd00:244:2::/64"), b)}: b, {IPv4, addr("10.244.3.0")}: c,
			{IPv6, addr("10.244.4.0")}: MACOf("d"),
		},
		Forward: map[Far]netip.Addr{{IPv4, b}: addr("10.0.0.2"), {IPv4, c}: addr("10.1.0.3"), {IPv6, MACOf("d")}: addr("2001:db8::4")},
		Senders: map[netip.Addr]struct{}{addr("10.0.0.2"): {}, addr("10.1.0.3"): {}, addr("2001:db8::4"): {}},
		Filter: Filter{
			Nodes: map[netip.Addr]struct{}{addr("10.0.0.2"): {}, addr("10.1.0.3"): {}, addr("2001:db8::4"): {}},
			Peers: map[netip.Prefix]struct{}{
				prefix("10.244.2.0/24"): {}, prefix("fd00:244:2::/64"): {}, prefix("10.244.3.0/24"): {}, prefix("10.244.4.0/24"): {},
			},
			Own: self.Addresses,
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestEncryptedPlan(t *testing.T) {
	node := self
	node.Closed = []netip.Prefix{prefix("10.244.0.0/16")}
	got := New(node, []Peer{
		{
			Name: "b", Addresses: []netip.Addr{addr("10.0.0.2")}, Tunnel: addr("10.0.0.2"), Key: wireguard.Key{2}, MTU: 1440,
			Paths: []Path{{Range: prefix("10.244.2.0/24")}, {Range: prefix("fd00:244:2::/64")}},
		},
		{
			Name: "c", Addresses: []netip.Addr{addr("2001:db8::3")}, Tunnel: addr("2001:db8::3"), Key: wireguard.Key{3}, MTU: 1420,
			Paths: []Path{{Range: prefix("10.244.3.0/24")}},
		},
		{Name: "d", Addresses: []netip.Addr{addr("2001:db8::4")}, Key: wireguard.Key{4}}, // no address that is reached
	})
	want := New(Node{}, nil)
	want.Devices = map[Underlay]Device{Encrypted: {MTU: 1440, Up: true}}
	want.Addresses = map[Address]struct{}{{Encrypted, addr("10.244.1.0")}: {}, {Encrypted, addr("fd00:244:1::")}: {}}
	want.Routes = map[netip.Prefix]Route{
		prefix("10.244.0.0/16"):   {Closed: true},
		prefix("10.244.2.0/24"):   {Device: Encrypted, Source: addr("10.244.1.0")},
		prefix("fd00:244:2::/64"): {Device: Encrypted, Source: addr("fd00:244:1::")},
		prefix("10.244.3.0/24"):   {Device: Encrypted, Source: addr("10.244.1.0"), MTU: 1420},
	}
	want.Filter.Own = self.Addresses
	for _, a := range []string{"10.0.0.2", "2001:db8::3", "2001:db8::4"} {
		want.Filter.Nodes[addr(a)] = struct{}{}
	}
	for _, p := range []string{"10.244.2.0/24", "fd00:244:2::/64", "10.244.3.0/24"} {
		want.Filter.Peers[prefix(p)] = struct{}{}
	}
	want.Encrypted = []wireguard.Peer{
		{
			Key: wireguard.Key{2}, Endpoint: netip.AddrPortFrom(addr("10.0.0.2"), 0),
			Ranges: []netip.Prefix{prefix("10.244.2.0/24"), prefix("fd00:244:2::/64")},
		},
		{Key: wireguard.Key{3}, Endpoint: netip.AddrPortFrom(addr("2001:db8::3"), 0), Ranges: []netip.Prefix{prefix("10.244.3.0/24")}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAloneThereIsNothing(t *testing.T) {
	if p := New(self, nil); !p.Empty() {
		t.Errorf("%+v", p)
	}
}

func TestNodesHaveDifferentTunnelEnds(t *testing.T) {
	if m := MACOf("a"); m == MACOf("b") || m[0]&3 != 2 {
		t.Errorf("%x, %x: want different ones, local and unicast", m, MACOf("b"))
	}
}
