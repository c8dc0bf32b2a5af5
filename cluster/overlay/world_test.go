package overlay

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const (
	testCluster = 6443
	testVNI     = 4242
	testPort    = 8472
)

// machine is a node with one pod.
type machine struct {
	*testnet.Space
	t       *testing.T
	node    Node
	pod     *testnet.Space
	network *paths.Network
	before  map[string]Node
	// encryption and closed are nil without encryption.
	encryption *Encryption
	closed     []netip.Prefix
}

// world is two nodes on a network, a and b, and a node c behind a router.
type world struct {
	t       *testing.T
	router  *testnet.Space
	a, b, c *machine
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, router: testnet.NewSpace(t, "router")}
	w.router.Run("ip link add lan type bridge mcast_snooping 0")
	w.router.Run("ip link set lan up")
	w.router.Run("ip addr add 10.0.0.254/24 dev lan")
	w.router.Run("ip addr add 2001:db8::fe/64 dev lan nodad")
	route(t, w.router)
	w.a = w.machine("a", 1, "10.0.0.1", "2001:db8::1")
	w.b = w.machine("b", 2, "10.0.0.2", "2001:db8::2")
	for _, m := range []*machine{w.a, w.b} {
		testnet.Wire(w.router, "to-"+m.Name, m.Space, "eth0")
		w.router.Run("ip link set to-" + m.Name + " master lan")
		m.Run("ip addr add " + m.node.Addresses[0].String() + "/24 dev eth0")
		m.Run("ip addr add " + m.node.Addresses[1].String() + "/64 dev eth0 nodad")
		m.Run("ip route add default via 10.0.0.254")
		m.Run("ip route add default via 2001:db8::fe")
	}
	w.c = w.machine("c", 3, "10.1.0.3", "2001:db8:1::3")
	testnet.Wire(w.router, "to-c", w.c.Space, "eth0")
	w.router.Run("ip addr add 10.1.0.254/24 dev to-c")
	w.router.Run("ip addr add 2001:db8:1::fe/64 dev to-c nodad")
	w.c.Run("ip addr add 10.1.0.3/24 dev eth0")
	w.c.Run("ip addr add 2001:db8:1::3/64 dev eth0 nodad")
	w.c.Run("ip route add default via 10.1.0.254")
	w.c.Run("ip route add default via 2001:db8:1::fe")
	return w
}

// route has a space forward packets, and use its addresses at once.
func route(t *testing.T, s *testnet.Space) {
	s.Within(func() {
		for name, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				t.Error(err)
			}
		}
	})
}

// machine makes a node with a pod. As on a real one, what pods send elsewhere gets the node's
// address.
func (w *world) machine(name string, number int, addresses ...string) *machine {
	m := &machine{Space: testnet.NewSpace(w.t, name), t: w.t, node: Node{
		Name: name, Created: time.Unix(int64(number), 0),
		Ranges: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", number)),
		},
	}}
	for _, a := range addresses {
		m.node.Addresses = append(m.node.Addresses, netip.MustParseAddr(a))
	}
	route(w.t, m.Space)
	m.pod = testnet.NewSpace(w.t, "pod of "+name)
	m.pod.IPv4, m.pod.IPv6 = m.node.Ranges[0].Addr().Next().Next(), m.node.Ranges[1].Addr().Next().Next()
	testnet.Wire(m.Space, "pod", m.pod, "eth0")
	m.Run("ip addr add " + m.node.Ranges[0].Addr().Next().String() + "/32 dev lo")
	m.Run("ip addr add fe80::1/64 dev pod nodad")
	m.Run("ip route add " + m.pod.IPv4.String() + " dev pod")
	m.Run("ip route add " + m.pod.IPv6.String() + " dev pod")
	for _, r := range m.node.Ranges {
		m.Run("ip route add unreachable " + r.String() + " proto 85")
	}
	gateway := m.node.Ranges[0].Addr().Next().String()
	m.pod.Run("ip addr add " + m.pod.IPv4.String() + "/32 dev eth0")
	m.pod.Run("ip addr add " + m.pod.IPv6.String() + "/128 dev eth0 nodad")
	m.pod.Run("ip route add " + gateway + " dev eth0")
	m.pod.Run("ip route add default via " + gateway)
	m.pod.Run("ip route add default via fe80::1 dev eth0")
	m.Run("nft add table inet runtime")
	m.Run("nft add chain inet runtime post { type nat hook postrouting priority srcnat ; }")
	m.Run("nft add rule inet runtime post ip saddr " + m.node.Ranges[0].String() + " oifname != pod masquerade")
	m.Run("nft add rule inet runtime post ip6 saddr " + m.node.Ranges[1].String() + " oifname != pod masquerade")
	for _, network := range []string{"tcp", "udp"} {
		m.pod.Serve(network, 80)
	}
	return m
}

func (w *world) machines() []*machine { return []*machine{w.a, w.b, w.c} }

func (w *world) others(m *machine) (all []Node) {
	for _, other := range w.machines() {
		if other != m {
			all = append(all, other.node)
		}
	}
	return all
}

// open starts the network of a node.
func (m *machine) open() {
	m.t.Helper()
	m.Within(func() {
		var err error
		m.network, err = paths.Open(paths.Config{
			Cluster: testCluster, Node: m.self(), VNI: testVNI, Port: testPort, Log: slog.New(slog.NewTextHandler(m.t.Output(), nil)),
			Encryption: m.encryption.kernel(),
		})
		if err != nil {
			m.t.Fatal(err)
		}
	})
	network := m.network
	m.t.Cleanup(func() { _ = network.Close() })
}

func (m *machine) self() paths.Node {
	return paths.Node{Name: m.node.Name, Addresses: m.node.Addresses, Ranges: m.node.Ranges, Closed: m.closed}
}

// choose chooses the paths to others.
func (m *machine) choose(others []Node) Choice {
	m.t.Helper()
	var addresses []netip.Addr
	for _, n := range others {
		addresses = append(addresses, n.Addresses...)
	}
	host, err := m.network.Look(addresses)
	if err != nil {
		m.t.Fatal(err)
	}
	c := Choose(m.node, others, m.before, host)
	for name, err := range c.Problems {
		m.t.Errorf("node %s at %s: %v", name, m.Name, err)
	}
	m.before = c.Accepted
	return c
}

func (m *machine) apply(peers []paths.Peer) {
	m.t.Helper()
	var err error
	m.Within(func() { err = m.network.Apply(m.t.Context(), paths.New(m.self(), peers)) })
	if err != nil {
		m.t.Fatal(m.Name, err)
	}
}

// connect connects all nodes.
func (w *world) connect() {
	w.t.Helper()
	for _, m := range w.machines() {
		if m.network == nil {
			m.open()
		}
		m.apply(m.choose(w.others(m)).Peers)
	}
}

// reaches checks that each pod and each node reaches each pod of another node, and that pods are
// known by their own addresses.
func (w *world) reaches() {
	w.t.Helper()
	for _, from := range w.machines() {
		for _, to := range w.machines() {
			if from == to {
				continue
			}
			for _, network := range []string{"tcp", "udp"} {
				for _, pair := range [][2]netip.Addr{{from.pod.IPv4, to.pod.IPv4}, {from.pod.IPv6, to.pod.IPv6}} {
					answer, err := from.pod.Ask(network, netip.AddrPortFrom(pair[1], 80).String())
					if want := to.pod.Name + " " + pair[0].String(); err != nil || answer != want {
						w.t.Errorf("%s: %s to %s: %q, %v; want %q", network, from.pod.Name, pair[1], answer, err, want)
					}
					if answer, err := from.Ask(network, netip.AddrPortFrom(pair[1], 80).String()); err != nil {
						w.t.Errorf("%s: node %s to %s: %q, %v", network, from.Name, pair[1], answer, err)
					}
				}
			}
		}
	}
}

// guard lets packets to the pod in as coracled does: from the networks and gateways of routes to
// other nodes' pods, in all routing tables.
func (m *machine) guard() {
	m.t.Helper()
	m.Run("nft add chain inet runtime forward { type filter hook forward priority filter ; }")
	m.Run("nft flush chain inet runtime forward")
	m.Run("nft add rule inet runtime forward oifname != pod accept")
	m.Run("nft add rule inet runtime forward ct state established,related accept")
	for family, match := range map[string]string{"-4": "ip", "-6": "ip6"} {
		for line := range strings.Lines(m.Run("ip " + family + " route show table all proto 86")) {
			fields := strings.Fields(strings.TrimPrefix(line, "throw "))
			m.Run("nft add rule inet runtime forward " + match + " saddr " + fields[0] + " accept")
			if fields[1] == "via" {
				m.Run("nft add rule inet runtime forward " + match + " saddr " + fields[2] + " accept")
			}
		}
	}
	m.Run("nft add rule inet runtime forward drop")
}

// askFrom asks a server, from a socket that is bound to an address.
func (m *machine) askFrom(from, to netip.Addr, port uint16) (answer string, err error) {
	m.Within(func() {
		d := net.Dialer{Timeout: testnet.Patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		var conn net.Conn
		if conn, err = d.DialContext(m.t.Context(), "tcp", netip.AddrPortFrom(to, port).String()); err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testnet.Patience))
		answer, err = bufio.NewReader(conn).ReadString('\n')
	})
	return strings.TrimSpace(answer), err
}

// echo checks that a connection is alive.
func echo(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(testnet.Patience))
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, text)
		written <- err
	}()
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != text {
		t.Fatalf("%v after %d bytes", err, len(text))
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// dial opens a connection to a pod, and reads the server's greeting.
func dial(t *testing.T, from *testnet.Space, to netip.Addr) net.Conn {
	t.Helper()
	conn, err := from.Dial("tcp", netip.AddrPortFrom(to, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testnet.Patience))
	one := make([]byte, 1)
	for one[0] != '\n' {
		if _, err := io.ReadFull(conn, one); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// number is that of a link, which differs when it is made again.
var number = regexp.MustCompile(`(?m)^[0-9]+: `)

// state is what a node's kernel has that paths are made of. IPv6's table "local" is left out: the
// kernel adds the route of an address to it by a work of its own, a little after the address.
func (m *machine) state() string {
	m.t.Helper()
	var all []string
	for _, command := range []string{
		"ip -4 route show table all", "ip -6 route show table all", "ip -d link show type vxlan", "ip -br addr", "nft list ruleset",
		"bridge fdb", "ip neigh show nud permanent",
	} {
		lines := slices.DeleteFunc(strings.Split(m.Run(command), "\n"), func(line string) bool {
			return strings.HasPrefix(command, "ip -6 route") && strings.Contains(line, " table local ")
		})
		all = append(all, testnet.SortedLines(number.ReplaceAllString(strings.Join(lines, "\n"), "")))
	}
	return strings.Join(all, "\n")
}
