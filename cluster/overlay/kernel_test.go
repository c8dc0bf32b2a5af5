package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestPodsOfAllNodesReachEachOther(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.reaches()
	routes := w.a.Run("ip route show proto 86")
	for _, want := range []string{"10.244.2.0/24 via 10.0.0.2 dev eth0", "10.244.3.0/24 via 10.244.3.0 dev coracle4-6443"} {
		if !strings.Contains(routes, want) {
			t.Errorf("no %q in\n%s", want, routes)
		}
	}
}

func TestAConnectionOutlivesAnotherAddressOfItsNode(t *testing.T) {
	w := newWorld(t)
	w.connect()
	direct, tunnelled := dial(t, w.a.pod, w.b.pod.IPv4), dial(t, w.c.pod, w.b.pod.IPv6)
	w.b.Run("ip addr add 10.0.0.22/24 dev eth0")
	w.b.node.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.22"), w.b.node.Addresses[1]}
	// Each node hears of it at another time.
	for _, m := range []*machine{w.a, w.b, w.c} {
		m.apply(m.choose(w.others(m)).Peers)
		if m != w.b {
			echo(t, direct, "while "+m.Name+" knows")
		}
	}
	w.b.Run("ip addr del 10.0.0.2/24 dev eth0")
	w.b.Run("ip addr replace 10.0.0.22/24 dev eth0") // the kernel removes it with the first of the network
	w.b.Run("ip route replace default via 10.0.0.254")
	for _, m := range w.machines() {
		m.apply(m.choose(w.others(m)).Peers)
	}
	echo(t, direct, "direct")
	echo(t, tunnelled, "tunnelled")
	w.reaches()
}

func TestAConnectionOutlivesAnotherKindOfPath(t *testing.T) {
	w := newWorld(t)
	w.connect()
	conn := dial(t, w.a.pod, w.b.pod.IPv4)
	for _, m := range []*machine{w.a, w.b} {
		peers := m.choose(w.others(m)).Peers
		direct := slices.Clone(peers[0].Paths)
		peers[0].Paths = nil
		for _, p := range direct {
			peers[0].Paths = append(peers[0].Paths, paths.Path{Range: p.Range})
		}
		m.apply(peers)
		echo(t, conn, "after "+m.Name)
	}
	w.reaches()
	for _, m := range []*machine{w.a, w.b} {
		m.apply(m.choose(w.others(m)).Peers)
		echo(t, conn, "direct again at "+m.Name)
	}
}

// TestASecondAddressOfANode has the default route of a node lead to another network. For a
// connection to a Service, the kernel then chooses the node's address there, which other nodes do
// not know.
func TestASecondAddressOfANode(t *testing.T) {
	w := newWorld(t)
	second := []netip.Addr{netip.MustParseAddr("192.168.77.2"), netip.MustParseAddr("2001:db8:77::2")}
	elsewhere := testnet.NewSpace(t, "elsewhere")
	testnet.Wire(elsewhere, "eth0", w.a.Space, "eth1")
	w.a.Run("ip addr add 192.168.77.2/24 dev eth1")
	w.a.Run("ip addr add 2001:db8:77::2/64 dev eth1 nodad")
	w.a.Run("ip route add 10.1.0.0/24 via 10.0.0.254")
	w.a.Run("ip route add 2001:db8:1::/64 via 2001:db8::fe")
	w.a.Run("ip route replace default via 192.168.77.1")
	w.a.Run("ip -6 route replace default via 2001:db8:77::1")
	services := map[netip.Addr]*machine{}
	w.a.Run("nft add table inet services")
	w.a.Run("nft add chain inet services output { type nat hook output priority -100 ; }")
	for i, m := range []*machine{w.b, w.c} {
		of4, of6 := fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd00:96::%d", i+1)
		w.a.Run("nft add rule inet services output ip daddr " + of4 + " dnat ip to " + m.pod.IPv4.String())
		w.a.Run("nft add rule inet services output ip6 daddr " + of6 + " dnat ip6 to " + m.pod.IPv6.String())
		services[netip.MustParseAddr(of4)], services[netip.MustParseAddr(of6)] = m, m
	}
	// Pods on the networks of their nodes, and Services of them.
	hosts := map[netip.Addr]*machine{}
	for i, m := range []*machine{w.b, w.c} {
		for _, network := range []string{"tcp", "udp"} {
			m.Serve(network, 82)
		}
		of4, of6 := fmt.Sprintf("10.96.1.%d", i+1), fmt.Sprintf("fd00:96::1:%d", i+1)
		w.a.Run("nft add rule inet services output ip daddr " + of4 + " dnat ip to " + m.node.Addresses[0].String())
		w.a.Run("nft add rule inet services output ip6 daddr " + of6 + " dnat ip6 to " + m.node.Addresses[1].String())
		hosts[netip.MustParseAddr(of4)], hosts[netip.MustParseAddr(of6)] = m, m
	}
	w.connect()
	for _, m := range w.machines() {
		m.guard()
	}
	checkPods := func() {
		t.Helper()
		for service, to := range services {
			family := 0
			pod, want := to.pod.IPv4, w.a.node.Addresses
			if service.Is6() {
				family, pod = 1, to.pod.IPv6
			}
			if to == w.c { // by the tunnel
				want = []netip.Addr{paths.End(w.a.node.Ranges[0]), paths.End(w.a.node.Ranges[1])}
			}
			text := to.pod.Name + " " + want[family].String()
			for _, network := range []string{"tcp", "udp"} {
				if answer, err := w.a.Ask(network, netip.AddrPortFrom(service, 80).String()); err != nil || answer != text {
					t.Fatalf("%s to a Service of node %s: %q, %v; want %q", network, to.Name, answer, err, text)
				}
			}
			for _, from := range []netip.Addr{second[family], w.a.node.Addresses[family]} {
				if answer, err := w.a.askFrom(from, pod, 80); err != nil || answer != text {
					t.Fatalf("from %s to a pod of node %s: %q, %v; want %q", from, to.Name, answer, err, text)
				}
			}
		}
	}
	check := func() {
		t.Helper()
		for service, to := range hosts {
			want := w.a.node.Addresses[0]
			if service.Is6() {
				want = w.a.node.Addresses[1]
			}
			text := to.Name + " " + want.String()
			for _, network := range []string{"tcp", "udp"} {
				if answer, err := w.a.Ask(network, netip.AddrPortFrom(service, 82).String()); err != nil || answer != text {
					t.Fatalf("%s to a Service on the network of node %s: %q, %v; want %q", network, to.Name, answer, err, text)
				}
			}
		}
		checkPods()
	}
	check()

	// Nodes, and pods of this one, see the address that was chosen.
	w.b.Run("ip route add 192.168.77.2 via 10.0.0.1")
	w.b.Run("ip route add 2001:db8:77::2 via 2001:db8::1")
	w.b.Serve("tcp", 81)
	for i, from := range second {
		if answer, err := w.a.askFrom(from, w.b.node.Addresses[i], 81); err != nil || answer != "b "+from.String() {
			t.Errorf("from %s to node b: %q, %v", from, answer, err)
		}
		own := []netip.Addr{w.a.pod.IPv4, w.a.pod.IPv6}[i]
		if answer, err := w.a.askFrom(from, own, 80); err != nil || answer != "pod of a "+from.String() {
			t.Errorf("from %s to the node's own pod: %q, %v", from, answer, err)
		}
	}
	w.reaches()

	// The node gets another InternalIP. The former one stays on the machine.
	conn := dial(t, w.a.Space, netip.MustParseAddr("10.96.0.1"))
	w.a.Run("ip addr add 10.0.0.11/24 dev eth0")
	second[0], w.a.node.Addresses = w.a.node.Addresses[0], []netip.Addr{netip.MustParseAddr("10.0.0.11"), w.a.node.Addresses[1]}
	for _, m := range w.machines() {
		m.apply(m.choose(w.others(m)).Peers)
		m.guard()
	}
	echo(t, conn, "after another InternalIP")
	check()
}

// TestNodesDisagreeOnTheirLink has node a send to node b by the link, and b to a by the router and
// the tunnel.
func TestNodesDisagreeOnTheirLink(t *testing.T) {
	w := newWorld(t)
	w.b.Run("ip addr flush dev eth0 scope global")
	w.b.Run("ip addr add 10.0.0.2/32 dev eth0")
	w.b.Run("ip addr add 2001:db8::2/128 dev eth0 nodad")
	w.b.Run("ip route add 10.0.0.254 dev eth0")
	w.b.Run("ip route add 2001:db8::fe dev eth0")
	w.b.Run("ip route replace default via 10.0.0.254")
	w.b.Run("ip route replace default via 2001:db8::fe")
	w.connect()
	for m, want := range map[*machine]string{w.a: "10.244.2.0/24 via 10.0.0.2 dev eth0", w.b: "10.244.1.0/24 via 10.244.1.0 dev coracle4"} {
		if routes := m.Run("ip route show proto 86"); !strings.Contains(routes, want) {
			t.Fatalf("no %q in\n%s", want, routes)
		}
	}
	for _, m := range w.machines() {
		m.guard()
	}
	w.reaches()
}

// Regression: a route of IPv4 by a gateway of IPv6 (RFC 5549) counted as one without a gateway, and
// what is behind the gateway as a part of the link.
func TestAGatewayOfTheOtherFamily(t *testing.T) {
	w := newWorld(t)
	w.a.Run("ip route add 10.50.0.0/16 via inet6 2001:db8::fd dev eth0")
	w.a.open()
	near, far := w.b.node.Addresses[0], netip.MustParseAddr("10.50.0.2")
	host, err := w.a.network.Look([]netip.Addr{near, far})
	if err != nil {
		t.Fatal(err)
	}
	if way, ok := host.Ways[near]; !ok || !way.Direct {
		t.Errorf("to %s: %+v, want a direct way", near, way)
	}
	if way, ok := host.Ways[far]; !ok || way.Direct {
		t.Errorf("to %s: %+v, want one by a gateway", far, way)
	}
	for _, want := range []paths.Taken{
		{Net: netip.MustParsePrefix("10.50.0.0/16"), What: "a network with a route by eth0", Nodes: true, Ranges: true},
		{Net: netip.MustParsePrefix("2001:db8::fd/128"), What: "a gateway by eth0", Nodes: true},
	} {
		if !slices.Contains(host.Taken, want) {
			t.Errorf("no %+v in %+v", want, host.Taken)
		}
	}
}

// TestANodeSendsFromAnotherInternalIP has the kernel of node a choose its second InternalIP. Other
// nodes have routes by the first.
func TestANodeSendsFromAnotherInternalIP(t *testing.T) {
	w := newWorld(t)
	w.a.Run("ip addr add 10.0.0.11/24 dev eth0")
	w.a.node.Addresses = slices.Insert(slices.Clone(w.a.node.Addresses), 0, netip.MustParseAddr("10.0.0.11"))
	w.connect()
	for _, m := range w.machines() {
		m.guard()
	}
	if answer, err := w.a.Ask("tcp", netip.AddrPortFrom(w.b.pod.IPv4, 80).String()); err != nil || answer != "pod of b 10.0.0.1" {
		t.Errorf("%q, %v", answer, err)
	}
	w.reaches()
}

// TestPacketsFitTheTunnel sends more than a link's MTU in each packet, if the pods could.
func TestPacketsFitTheTunnel(t *testing.T) {
	w := newWorld(t)
	w.connect()
	// No help from errors of ICMP: the kernel's own to the pods are dropped.
	for _, m := range w.machines() {
		m.Run("nft add table inet deaf")
		m.Run("nft add chain inet deaf out { type filter hook output priority 0 ; }")
		m.Run("nft add rule inet deaf out oifname pod icmp type destination-unreachable drop")
		m.Run("nft add rule inet deaf out oifname pod icmpv6 type packet-too-big drop")
	}
	for _, to := range []netip.Addr{w.c.pod.IPv4, w.c.pod.IPv6} {
		echo(t, dial(t, w.a.pod, to), strings.Repeat("x", 1<<20))
	}
	for _, s := range []*testnet.Space{w.a.Space, w.c.Space, w.router} {
		if made := fragments(s.Run("cat /proc/thread-self/net/snmp")); made != "0" {
			t.Errorf("%s made %s fragments", s.Name, made)
		}
	}
}

// fragments is FragCreates.
func fragments(snmp string) string {
	lines := strings.Split(snmp, "\n")
	i := slices.Index(strings.Fields(lines[0]), "FragCreates")
	return strings.Fields(lines[1])[i]
}

// TestOnlyNodesUseTheTunnel has a machine that is no node send into the tunnel in the name of a
// pod.
func TestOnlyNodesUseTheTunnel(t *testing.T) {
	w := newWorld(t)
	w.connect()
	intruder := testnet.NewSpace(t, "intruder")
	testnet.Wire(w.router, "intruder", intruder, "eth0")
	w.router.Run("ip link set intruder master lan")
	intruder.Run("ip addr add 10.0.0.66/24 dev eth0")
	intruder.Run(fmt.Sprintf("ip link add tunnel type vxlan id %d dstport %d nolearning", testVNI, testPort))
	intruder.Run("ip link set tunnel up")
	intruder.Run("ip addr add " + w.c.pod.IPv4.String() + "/32 dev lo")
	mac := paths.MACOf("a")
	address := fmt.Sprintf("%x:%x:%x:%x:%x:%x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	intruder.Run("ip route add " + w.a.pod.IPv4.String() + " dev tunnel src " + w.c.pod.IPv4.String())
	intruder.Run("ip neigh add " + w.a.pod.IPv4.String() + " lladdr " + address + " dev tunnel")
	intruder.Run("bridge fdb add " + address + " dev tunnel dst 10.0.0.1")
	heard, out := w.a.pod.ListenIP("ip4:253"), intruder.ListenIP("ip4:253")
	arrives := func(patience time.Duration) bool {
		if _, err := out.WriteTo([]byte("x"), &net.IPAddr{IP: w.a.pod.IPv4.AsSlice()}); err != nil {
			t.Fatal(err)
		}
		_ = heard.SetReadDeadline(time.Now().Add(patience))
		_, _, err := heard.ReadFrom(make([]byte, 100))
		return err == nil
	}
	if arrives(testnet.Silence) {
		t.Error("a packet of another machine reached a pod through the tunnel")
	}
	w.a.Run("nft delete table inet coracle-overlay-6443")
	if !arrives(testnet.Patience) {
		t.Error("the packet does not arrive without the rules either: the test shows nothing")
	}
}

// TestRepair does to the kernel what others may do.
func TestRepair(t *testing.T) {
	w := newWorld(t)
	w.connect()
	plan := paths.New(w.a.self(), w.a.choose(w.others(w.a)).Peers)
	want := w.a.state()
	mac := paths.MACOf("c")
	address := fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])
	for _, change := range []string{
		"ip route del 10.244.2.0/24",
		"ip route replace 10.244.2.0/24 via 10.0.0.9 proto 86 metric 6443 onlink dev eth0",
		"ip -6 route del fd00:244:3::/64",
		"ip neigh del 10.244.3.0 dev coracle4-6443",
		"bridge fdb del " + address + " dev coracle4-6443",
		"bridge fdb replace " + address + " dev coracle4-6443 dst 10.0.0.66",
		"ip addr del 10.244.1.0/32 dev coracle4-6443",
		"ip link set coracle4-6443 mtu 1300",
		"ip link set coracle4-6443 down",
		"ip link del coracle4-6443",
		"nft delete table inet coracle-overlay-6443",
		"nft flush chain inet coracle-overlay-6443 tunnelled",
		"nft flush set inet coracle-overlay-6443 own4",
		"nft flush map inet coracle-overlay-6443 source6",
		"ip route add 10.244.77.0/24 via 10.0.0.2 proto 86 metric 6443",
		"ip route del throw 10.0.0.2 table 86086",
		"ip -6 route flush table 86086",
		"ip route add throw 10.0.0.9 table 86086 proto 86 metric 6443",
	} {
		w.a.Run(change)
		if w.a.state() == want {
			t.Errorf("%s: nothing changed, so the test shows nothing", change)
		}
		deadline := time.After(testnet.Patience)
		for w.a.state() != want {
			select {
			case <-w.a.network.Changed():
			case <-deadline:
				t.Fatalf("%s: not repaired:\n%s\nwant:\n%s", change, w.a.state(), want)
			}
			w.a.Within(func() {
				if err := w.a.network.Apply(t.Context(), plan); err != nil {
					t.Error(err)
				}
			})
		}
	}
	w.reaches()
}

// TestANewProcessTakesOver has another process, with other nodes, find what a killed one has left.
func TestANewProcessTakesOver(t *testing.T) {
	w := newWorld(t)
	bare := w.a.state()
	w.connect()
	want := w.a.state()
	conn := dial(t, w.a.pod, w.c.pod.IPv4)
	for cut := range 6 { // it may be killed anywhere: some of what it made is missing
		switch cut {
		case 1:
			w.a.Run("ip route flush proto 86")
		case 2:
			w.a.Run("ip link del coracle4-6443")
		case 3:
			w.a.Run("nft delete table inet coracle-overlay-6443")
		case 4:
			w.a.Run("ip route add 10.244.9.0/24 via 10.0.0.9 proto 86 metric 6443") // of a node that has gone
		case 5:
			w.a.Run("ip link set coracle4-6443 down")
		}
		w.a.open()
		w.a.apply(w.a.choose(w.others(w.a)).Peers)
		if got := w.a.state(); got != want {
			t.Errorf("%d: got:\n%s\nwant:\n%s", cut, got, want)
		}
		echo(t, conn, "again")
	}
	for range 2 { // also what has been removed
		w.a.Within(func() {
			if err := paths.Remove(testCluster); err != nil {
				t.Error(err)
			}
		})
		if got := w.a.state(); got != bare {
			t.Errorf("left:\n%s\nwant:\n%s", got, bare)
		}
	}
}

func TestWithoutPeersThereIsNothing(t *testing.T) {
	w := newWorld(t)
	w.connect()
	w.a.apply(nil)
	if out := w.a.Run("ip route show proto 86") + w.a.Run("ip link show type vxlan"); out != "" {
		t.Error(out)
	}
}

// TestTunnelsOfOthersStay has the machine use what tunnels need.
func TestTunnelsOfOthersStay(t *testing.T) {
	for name, c := range map[string]struct{ command, problem string }{
		"the network": {
			fmt.Sprintf("ip link add theirs type vxlan id %d dstport %d local 10.0.0.1", testVNI, testPort),
			"theirs of this machine has the VXLAN network",
		},
		"the port": {"", "UDP port 8472 is taken"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if c.command != "" {
				w.a.Run(c.command)
				w.a.Run("ip link set theirs up")
			} else {
				w.a.Serve("udp", testPort)
			}
			w.a.open()
			peers := w.a.choose(w.others(w.a)).Peers
			var err error
			w.a.Within(func() { err = w.a.network.Apply(t.Context(), paths.New(w.a.self(), peers)) })
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v, want %q", err, c.problem)
			}
			if out := w.a.Run("ip route show proto 86"); !strings.Contains(out, "10.244.2.0/24 via 10.0.0.2") {
				t.Errorf("no direct route: %s", out)
			}
		})
	}
}
