package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// serve answers every connection to, or packet at, port in the namespace with
// name and the sender's address, until the test ends.
func serve(t *testing.T, path, name, network string, port uint16) {
	t.Helper()
	answer(t, path, network, ":"+strconv.Itoa(int(port)), func(sender net.Addr) string { return name + " " + senderIP(sender) })
}

// answer replies to every connection to, or packet at, an address in the namespace, until stop or
// the test's end.
func answer(t *testing.T, path, network, addr string, reply func(sender net.Addr) string) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var end io.Closer
	if network == "udp" {
		var pc net.PacketConn
		must(t, within(t, path, func() (err error) { pc, err = net.ListenPacket(network, addr); return err }))
		end = pc
		go func() {
			defer close(done)
			buf := make([]byte, 100)
			for {
				_, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo([]byte(reply(from)), from)
			}
		}()
	} else {
		var l net.Listener
		must(t, within(t, path, func() (err error) { l, err = net.Listen(network, addr); return err }))
		end = l
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, reply(c.RemoteAddr()))
				c.Close()
			}
		}()
	}
	stop = func() { _ = end.Close(); <-done }
	t.Cleanup(stop)
	return stop
}

func senderIP(a net.Addr) string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return err.Error()
	}
	return ap.Addr().Unmap().String()
}

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

// silence is how long no one answers before it counts as no answer.
const silence = 2 * time.Second

// ask returns what is answered at an address when asked from a namespace, within a time.
func ask(t *testing.T, path, network string, ip netip.Addr, port uint16, limit time.Duration) (string, error) {
	t.Helper()
	var answer []byte
	err := within(t, path, func() error {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(ip, port).String(), limit)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
			answer = make([]byte, 100)
			n, err := c.Read(answer)
			answer = answer[:n]
			return err
		}
		answer, err = io.ReadAll(c)
		return err
	})
	return string(answer), err
}

func expect(t *testing.T, what, path, network string, ip netip.Addr, port uint16, want string) {
	t.Helper()
	got, err := ask(t, path, network, ip, port, patience)
	if err != nil || got != want {
		t.Errorf("%s: %s to %s port %d: %q, %v; want %q", what, network, ip, port, got, err, want)
	}
}

func expectNone(t *testing.T, what, path, network string, ip netip.Addr, port uint16) {
	t.Helper()
	if got, err := ask(t, path, network, ip, port, silence); err == nil {
		t.Errorf("%s: %s to %s port %d is answered: %q", what, network, ip, port, got)
	}
}

// Regression: what was sent to a new pod was lost until workers of the kernel had seen its link and
// its IPv6 address. The links of other pods hold that up.
func TestFirstPacketArrives(t *testing.T) {
	m := started(t, testConfig(t))
	var pods []Pod
	for i := range 32 {
		id := "first" + strconv.Itoa(i)
		path, _ := newNetNS(t)
		serve(t, path, id, "udp", 80)
		pods = append(pods, Pod{ID: id, Name: id, Namespace: "default", UID: id, NetNS: path})
	}
	answers := make(chan error)
	for _, p := range pods {
		go func() {
			r, err := m.Setup(t.Context(), p)
			if err == nil && len(r.IPs) != 2 {
				err = fmt.Errorf("%s has addresses %v, want one of each family", p.ID, r.IPs)
			}
			for _, ip := range r.IPs {
				if err == nil {
					_, err = ask(t, "", "udp", ip, 80, silence)
				}
			}
			answers <- err
		}()
	}
	for range pods {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

// The outside world: a namespace with a link to the host, and no route to pods.
var (
	hostOut4, outside4 = netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	hostOut6, outside6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

// newOutside makes the outside world and returns its namespace.
func newOutside(t *testing.T) string {
	t.Helper()
	path, _ := newNetNS(t)
	ns, err := openNetns(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "out", PeerNamespace: netlink.NsFd(ns.Fd())}))
	t.Cleanup(func() { must(t, netlink.LinkDel(&netlink.Veth{LinkAttrs: attrs})) })
	link, err := netlink.LinkByName("uplink")
	must(t, err)
	dress := func(h *netlink.Handle, l netlink.Link, ips ...netip.Addr) {
		must(t, h.LinkSetUp(l))
		for _, ip := range ips {
			bits := 24
			if ip.Is6() {
				bits = 64
			}
			must(t, h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(ip, bits), Flags: unix.IFA_F_NODAD}))
		}
	}
	here, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	defer here.Close()
	there, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	must(t, err)
	defer there.Close()
	out, err := there.LinkByName("out")
	must(t, err)
	dress(here, link, hostOut4, hostOut6)
	dress(there, out, outside4, outside6)
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (p testPod) ip4() netip.Addr { return p.ips[0] }

func TestPodsReachEachOtherAndTheHost(t *testing.T) {
	m := started(t, testConfig(t))
	a, b := connect(t, m, "a"), connect(t, m, "b")
	serve(t, b.NetNS, "b", "tcp", 80)
	serve(t, b.NetNS, "b", "udp", 53)
	serve(t, "", "host", "tcp", 9000)
	for i := range a.ips {
		expect(t, "pod to pod", a.NetNS, "tcp", b.ips[i], 80, "b "+a.ips[i].String())
		expect(t, "pod to pod", a.NetNS, "udp", b.ips[i], 53, "b "+a.ips[i].String())
		expect(t, "pod to itself", b.NetNS, "tcp", b.ips[i], 80, "b "+b.ips[i].String())
		gateway := m.builtin.pools[i].gateway()
		expect(t, "pod to host", a.NetNS, "tcp", gateway, 9000, "host "+a.ips[i].String())
		expect(t, "host to pod", "", "tcp", b.ips[i], 80, "b "+gateway.String())
	}
}

func TestPodsReachTheOutsideAsTheHost(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	a := connect(t, m, "a")
	serve(t, out, "out", "tcp", 80)
	serve(t, out, "out", "udp", 53)
	for _, network := range []struct {
		name string
		port uint16
	}{{"tcp", 80}, {"udp", 53}} {
		expect(t, "pod to outside", a.NetNS, network.name, outside4, network.port, "out "+hostOut4.String())
		expect(t, "pod to outside", a.NetNS, network.name, outside6, network.port, "out "+hostOut6.String())
	}
}

func TestHostPorts(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	web := connect(t, m, "web",
		PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80},
		PortMapping{Protocol: "udp", HostPort: 5353, ContainerPort: 53},
		PortMapping{Protocol: "tcp", HostPort: 8081, ContainerPort: 80, HostIP: hostOut4},
		PortMapping{Protocol: "tcp", HostPort: 8081, ContainerPort: 80, HostIP: hostOut6},
		PortMapping{Protocol: "tcp", HostPort: 8082, ContainerPort: 80, HostIP: netip.MustParseAddr("127.0.0.1")},
		PortMapping{Protocol: "tcp", ContainerPort: 81},
	)
	other := connect(t, m, "other")
	serve(t, web.NetNS, "web", "tcp", 80)
	serve(t, web.NetNS, "web", "udp", 53)
	localhost := netip.MustParseAddr("127.0.0.1")
	gw4, gw6 := m.builtin.pools[0].gateway(), m.builtin.pools[1].gateway()
	from := func(ip netip.Addr) string { return "web " + ip.String() }

	expect(t, "outside", out, "tcp", hostOut4, 8080, from(outside4))
	expect(t, "outside", out, "tcp", hostOut6, 8080, from(outside6))
	expect(t, "outside", out, "udp", hostOut4, 5353, from(outside4))
	expect(t, "outside", out, "udp", hostOut6, 5353, from(outside6))
	expect(t, "host by its address", "", "tcp", hostOut4, 8080, from(hostOut4))
	expect(t, "host by its address", "", "tcp", hostOut6, 8080, from(hostOut6))
	expect(t, "host by localhost", "", "tcp", localhost, 8080, from(gw4))
	expect(t, "host by localhost", "", "udp", localhost, 5353, from(gw4))
	expect(t, "another pod", other.NetNS, "tcp", hostOut4, 8080, from(gw4))
	expect(t, "another pod", other.NetNS, "tcp", hostOut6, 8080, from(gw6))
	expect(t, "the pod itself", web.NetNS, "tcp", hostOut4, 8080, from(gw4))
	expect(t, "the pod itself", web.NetNS, "udp", gw4, 5353, from(gw4))

	expect(t, "bound to an address", out, "tcp", hostOut4, 8081, from(outside4))
	expect(t, "bound to an address", out, "tcp", hostOut6, 8081, from(outside6))
	expectNone(t, "bound to another address", "", "tcp", localhost, 8081)
	expectNone(t, "bound to another address", other.NetNS, "tcp", gw4, 8081)
	expect(t, "bound to localhost", "", "tcp", localhost, 8082, from(gw4))
	expectNone(t, "bound to localhost", out, "tcp", hostOut4, 8082)
	expectNone(t, "no host port", out, "tcp", hostOut4, 81)
	expectNone(t, "::1", "", "tcp", netip.IPv6Loopback(), 8080)

	if err := m.Teardown(t.Context(), web.Pod); err != nil {
		t.Fatal(err)
	}
	expectNone(t, "after Teardown", out, "tcp", hostOut4, 8080)
	expectNone(t, "after Teardown", "", "tcp", localhost, 8082)
	again := connect(t, m, "again", web.Ports...)
	serve(t, again.NetNS, "again", "tcp", 80)
	expect(t, "next owner", out, "tcp", hostOut4, 8080, "again "+outside4.String())
}

func TestUDPFlowsFollowTheHostPort(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	port := PortMapping{Protocol: "udp", HostPort: 5353, ContainerPort: 53}
	first := connect(t, m, "first", port)
	serve(t, first.NetNS, "first", "udp", 53)
	// A link that is new may drop packets for a moment, which TCP repeats.
	gw4 := m.builtin.pools[0].gateway()
	serve(t, "", "host", "tcp", 9000)
	expect(t, "the uplink sends", out, "tcp", hostOut4, 9000, "host "+outside4.String())
	serve(t, first.NetNS, "first", "tcp", 80)
	expect(t, "the pod's link sends", "", "tcp", first.ip4(), 80, "first "+gw4.String())
	var c net.Conn
	must(t, within(t, out, func() (err error) {
		c, err = net.Dial("udp", netip.AddrPortFrom(hostOut4, 5353).String())
		return err
	}))
	defer c.Close()
	exchange := func() string {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if _, err := c.Write([]byte("hello")); err != nil {
			return err.Error()
		}
		buf := make([]byte, 100)
		n, err := c.Read(buf)
		return fmt.Sprint(string(buf[:n]), err)
	}
	if got := exchange(); got != "first "+outside4.String()+"<nil>" {
		t.Fatal(got)
	}
	must(t, m.Teardown(t.Context(), first.Pod))
	second := connect(t, m, "second", port)
	serve(t, second.NetNS, "second", "udp", 53)
	serve(t, second.NetNS, "second", "tcp", 80)
	expect(t, "the second pod's link sends", "", "tcp", second.ip4(), 80, "second "+gw4.String())
	if got := exchange(); got != "second "+outside4.String()+"<nil>" {
		t.Errorf("the same socket, after the port has a new owner: %s", got)
	}
	must(t, m.Teardown(t.Context(), second.Pod))
	serve(t, "", "host", "udp", 5353)
	if got := exchange(); got != "host "+outside4.String()+"<nil>" {
		t.Errorf("the same socket, after the node listens on the port itself: %s", got)
	}
}

// nft changes the host's rules.
func nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, output)
	}
}

// Regression: a new connection to a Service failed ("no route to host") if its client used the port
// of an earlier one again, which had gone to a pod that is gone, and had been reset.
func TestConnectionsForgetAPodThatIsGone(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	// Otherwise the entries could be gone by themselves.
	must(t, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", []byte("600"), 0))
	var l net.Listener
	must(t, within(t, a.NetNS, func() (err error) {
		l, err = net.Listen("tcp", ":80")
		return err
	}))
	defer l.Close()
	serve(t, b.NetNS, "b", "tcp", 80)
	lead := func(v4, v6 netip.Addr) {
		t.Helper()
		nft(t, fmt.Sprintf(`table inet services; delete table inet services; table inet services { chain p { type nat hook prerouting priority dstnat;
			tcp dport 8080 dnat ip to %s:80; tcp dport 8080 dnat ip6 to [%s]:80; }; }`, v4, v6))
	}
	defer nft(t, "delete table inet services")
	lead(a.ips[0], a.ips[1])
	const port = 20000
	dial := func(to netip.Addr) (conn net.Conn, err error) {
		must(t, within(t, out, func() error {
			d := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}, Timeout: patience}
			conn, err = d.Dial("tcp", netip.AddrPortFrom(to, 8080).String())
			return nil
		}))
		return conn, err
	}
	for _, to := range []netip.Addr{hostOut4, hostOut6} {
		client, err := dial(to)
		must(t, err)
		server, err := l.Accept()
		must(t, err)
		must(t, server.(*net.TCPConn).SetLinger(0))
		must(t, server.Close()) // resets it
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		must(t, client.Close())
	}
	if n := connectionsTo(t, a.ips...); n != 2 {
		t.Fatalf("%d connections to the pod are tracked, want one of each family", n)
	}
	must(t, m.Teardown(t.Context(), a.Pod))
	must(t, m.builtin.reaper.idle(t.Context()))
	if n := connectionsTo(t, a.ips...); n != 0 {
		t.Errorf("%d connections to the pod that is gone are tracked", n)
	}
	lead(b.ips[0], b.ips[1])
	for _, to := range []netip.Addr{hostOut4, hostOut6} {
		client, err := dial(to)
		must(t, err)
		answer, err := io.ReadAll(client)
		must(t, err)
		must(t, client.Close())
		if !strings.HasPrefix(string(answer), "b ") {
			t.Errorf("the next connection from the same port: %q", answer)
		}
	}
}

// Regression: of a pod's host port and another table's translation of the same port, as of a
// Service, the one whose table was made last had the connections: a Service's went to the pod after
// the pods' table had been made again.
func TestServicesHavePrecedenceOverHostPorts(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	a := connect(t, m, "a", PortMapping{Protocol: "tcp", HostPort: 8080, ContainerPort: 80})
	b := connect(t, m, "b")
	serve(t, a.NetNS, "a", "tcp", 80)
	serve(t, b.NetNS, "b", "tcp", 80)
	expect(t, "without a Service", out, "tcp", hostOut4, 8080, "a "+outside4.String())
	nft(t, fmt.Sprintf(`table inet services { chain p { type nat hook prerouting priority dstnat; tcp dport 8080 dnat ip to %s:80; }; }`, b.ip4()))
	defer nft(t, "delete table inet services")
	expect(t, "with a Service", out, "tcp", hostOut4, 8080, "b "+outside4.String())
	must(t, m.builtin.restoreTable())
	expect(t, "after the pods' table was made again", out, "tcp", hostOut4, 8080, "b "+outside4.String())
}

func TestPodsCannotReachTheHostsLoopback(t *testing.T) {
	m := started(t, testConfig(t))
	a := connect(t, m, "a")
	l, err := net.ListenPacket("udp4", ":9001")
	must(t, err)
	defer l.Close()
	gateway := m.builtin.pools[0].gateway()
	// A link that is new may drop packets for a moment, which TCP repeats.
	serve(t, "", "host", "tcp", 9002)
	expect(t, "the link sends", a.NetNS, "tcp", gateway, 9002, "host "+a.ip4().String())
	// As CVE-2020-8558 has it: the pod routes 127.0.0.1 to its gateway.
	must(t, within(t, a.NetNS, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := h.AddrDel(lo, &netlink.Addr{IPNet: ipNet(netip.MustParseAddr("127.0.0.1"), 8)}); err != nil {
			return err
		}
		if err := setSysctl("ipv4/conf/all/route_localnet", "1"); err != nil {
			return err
		}
		eth, err := h.LinkByName(podIf)
		if err != nil {
			return err
		}
		err = h.RouteAdd(&netlink.Route{
			LinkIndex: eth.Attrs().Index, Dst: ipNet(netip.MustParseAddr("127.0.0.0"), 8), Gw: gateway.AsSlice(),
			Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return err
		}
		// What arrives first tells whether the other did.
		for _, to := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), gateway} {
			c, err := net.Dial("udp4", netip.AddrPortFrom(to, 9001).String())
			if err != nil {
				return err
			}
			_, err = c.Write([]byte(to.String()))
			c.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, l.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 100)
	n, _, err := l.ReadFrom(buf)
	if got := string(buf[:n]); err != nil || got != gateway.String() {
		t.Errorf("the packet to %s arrived, %v", got, err)
	}
}
