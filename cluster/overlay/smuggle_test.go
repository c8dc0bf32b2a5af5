package overlay

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// tunnelled is the payload of a VXLAN packet (RFC 7348, 5) for the tunnel end of a node. In it is a
// packet of protocol 253.
func tunnelled(node string, from, to netip.Addr) []byte {
	frame := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, testVNI<<8)
	mac := paths.MACOf(node)
	frame = append(append(frame, mac[:]...), 0x0e, 1, 2, 3, 4, 5, 0x08, 0x00)
	header := append([]byte{0x45, 0, 0, 21, 0, 0, 0, 0, 64, 253, 0, 0}, append(from.AsSlice(), to.AsSlice()...)...)
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
	return append(append(frame, header...), 'x')
}

// TestPodsSendNothingIntoTheTunnel has a pod of node a send tunnelled packets to node b, in the
// name of a pod of node c. They would leave with the address of a node, which b takes them from.
func TestPodsSendNothingIntoTheTunnel(t *testing.T) {
	at := func(a string) string { return netip.AddrPortFrom(netip.MustParseAddr(a), testPort).String() }
	type test struct {
		name, target string
		prepare      func(*world)
		// guard is the node whose rules drop the packet.
		guard func(*world) *machine
	}
	a := func(w *world) *machine { return w.a }
	forward := func(m *machine, from string) {
		m.Run("nft add chain inet runtime pre { type nat hook prerouting priority dstnat ; }")
		m.Run("nft add rule inet runtime pre " + from + " dnat ip to " + at("10.0.0.2"))
	}
	for _, c := range []test{
		{"IPv4", at("10.0.0.2"), func(*world) {}, a},
		{"IPv6", at("2001:db8::2"), func(w *world) {
			for _, m := range w.machines() {
				m.node.Addresses = m.node.Addresses[1:]
			}
		}, a},
		{"an address that is no InternalIP", at("10.0.0.22"), func(w *world) { w.b.Run("ip addr add 10.0.0.22/24 dev eth0") }, a},
		{"a Service", "10.96.0.9:99", func(w *world) { forward(w.a, "ip daddr 10.96.0.9 udp dport 99") }, a},
		{"a node port of another node", "10.1.0.3:30000", func(w *world) {
			forward(w.c, "udp dport 30000")
			w.c.Run("nft add rule inet runtime post ip daddr 10.0.0.2 masquerade")
		}, func(w *world) *machine { return w.c }},
		{
			"a node port of that node", "10.0.0.2:30000", func(w *world) { forward(w.b, "udp dport 30000") },
			func(w *world) *machine { return w.b },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.prepare(w)
			w.connect()
			heard := w.b.pod.ListenIP("ip4:253")
			arrives := func(patience time.Duration) bool {
				conn, err := w.a.pod.Dial("udp", c.target)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := conn.Write(tunnelled("b", w.c.pod.IPv4, w.b.pod.IPv4)); err != nil {
					t.Fatal(err)
				}
				_ = heard.SetReadDeadline(time.Now().Add(patience))
				_, from, err := heard.ReadFrom(make([]byte, 100))
				return err == nil && from.String() == w.c.pod.IPv4.String()
			}
			if arrives(testnet.Silence) {
				t.Error("a pod's packet reached a pod of another node in the name of a third one's")
			}
			c.guard(w).Run(fmt.Sprintf("nft delete table inet coracle-overlay-%d", testCluster))
			if !arrives(testnet.Patience) {
				t.Error("the packet does not arrive without the rules either: the test shows nothing")
			}
		})
	}
}

// A cluster inside pods may have the same tunnels.
func TestPodsHaveTunnelsOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	w.connect()
	for _, to := range []*testnet.Space{w.b.pod, w.c.pod} {
		var heard net.PacketConn
		var err error
		to.Within(func() { heard, err = net.ListenPacket("udp", fmt.Sprintf(":%d", testPort)) })
		if err != nil {
			t.Fatal(err)
		}
		defer heard.Close()
		for _, target := range []netip.Addr{to.IPv4, to.IPv6} {
			conn, err := w.a.pod.Dial("udp", netip.AddrPortFrom(target, testPort).String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write(tunnelled("x", to.IPv4, to.IPv4)); err != nil {
				t.Fatal(err)
			}
			_ = heard.SetReadDeadline(time.Now().Add(testnet.Patience))
			if _, _, err := heard.ReadFrom(make([]byte, 100)); err != nil {
				t.Errorf("to %s of %s: %v", target, to.Name, err)
			}
		}
	}
}
