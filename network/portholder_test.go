package network

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit/nofiles"
	"github.com/coracle-project/coracle/network/firewall"
)

// serveAt is a process of the node: it answers at one address with "node", until stop or the test's
// end.
func serveAt(t *testing.T, network string, at netip.AddrPort) (stop func()) {
	t.Helper()
	return answer(t, "", network, at.String(), func(net.Addr) string { return "node" })
}

// TestTheHostReachesItselfByItsAddressInThePodsRange: what it sends there was masqueraded as if it
// left.
func TestTheHostReachesItselfByItsAddressInThePodsRange(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "a")
	serve(t, "", "host", "tcp", 9000)
	for _, pool := range m.builtin.pools {
		expect(t, "host to its gateway address", "", "tcp", pool.gateway(), 9000, "host "+pool.gateway().String())
	}
}

func at(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	return netip.MustParseAddrPort(addr)
}

// hijack is what a pod with a host port gets if its port is not looked at: the translation.
func hijack(t *testing.T, m *Manager, p testPod, port hostPort) (undo func()) {
	t.Helper()
	e := firewall.Pod{Ports: []firewall.PodPort{{HostPort: firewall.HostPort(port), Pod: p.ip4()}}}
	must(t, m.builtin.fw.Add(e))
	must(t, takeLoopback(vethName(p.ID)))
	return func() { must(t, m.builtin.fw.Drop(e)) }
}

// A pod asks for a host port where a process of the node listens, such as a registry or the API
// server.
func TestAPodDoesNotGetAPortOfTheNode(t *testing.T) {
	m := started(t, testConfig(t))
	thief := connect(t, m, "thief")
	serve(t, thief.NetNS, "thief", "tcp", 80)
	serve(t, thief.NetNS, "thief", "udp", 80)
	gw4 := m.builtin.pools[0].gateway()
	expect(t, "the link sends", "", "tcp", thief.ip4(), 80, "thief "+gw4.String()) // by TCP, which repeats what a new link drops
	for name, tc := range map[string]struct {
		network, listen string
		hostIP          netip.Addr
		asked           netip.Addr
	}{
		"tcp on loopback":         {network: "tcp", listen: "127.0.0.1:5000", asked: localhost},
		"tcp on all":              {network: "tcp", listen: "[::]:5000", asked: localhost},
		"tcp on all of IPv4":      {network: "tcp4", listen: "0.0.0.0:5000", asked: localhost},
		"tcp, one address wanted": {network: "tcp", listen: "[::]:5000", hostIP: gw4, asked: gw4},
		"udp on loopback":         {network: "udp", listen: "127.0.0.1:5000", asked: localhost},
		"udp on all":              {network: "udp", listen: "[::]:5000", asked: localhost},
		"tcp on all, by IPv6":     {network: "tcp", listen: "[::]:5000", asked: netip.IPv6Loopback()},
	} {
		t.Run(name, func(t *testing.T) {
			stop := serveAt(t, tc.network, at(t, tc.listen))
			defer stop()
			protocol := strings.TrimRight(tc.network, "46")
			path, _ := newNetNS(t)
			wanted := PortMapping{Protocol: protocol, HostPort: 5000, ContainerPort: 80, HostIP: tc.hostIP}
			_, err := m.Setup(t.Context(), Pod{ID: "attacker", NetNS: path, Ports: []PortMapping{wanted}})
			if !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), "a process of the node listens on") {
				t.Errorf("the pod got the port: %v", err)
			}
			expect(t, "the node's own", "", protocol, tc.asked, 5000, "node")
			if tc.asked.Is6() {
				return // not translated in any case
			}
			// The same port, given without a look at who listens.
			undo := hijack(t, m, thief, hostPort{Protocol: protocol, Port: 5000, Target: 80})
			defer undo()
			got, err := ask(t, "", protocol, tc.asked, 5000, patience)
			if err != nil || !strings.HasPrefix(got, "thief ") {
				t.Errorf("positive control: the node's traffic to itself is answered with %q, %v", got, err)
			}
		})
	}
}

// A pod has a host port, and a process of the node wants to listen there later.
func TestAProcessOfTheNodeDoesNotListenOnAPodsPort(t *testing.T) {
	m := started(t, testConfig(t))
	var ports []PortMapping
	for _, protocol := range []string{"tcp", "udp"} {
		ports = append(ports, PortMapping{Protocol: protocol, HostPort: 5000, ContainerPort: 80})
	}
	web := connect(t, m, "web", ports...)
	serve(t, web.NetNS, "web", "tcp", 80)
	listens := func(network, addr string) error {
		if network == "udp" {
			pc, err := net.ListenPacket(network, addr)
			if err == nil {
				pc.Close()
			}
			return err
		}
		l, err := net.Listen(network, addr) // with SO_REUSEADDR, as servers do
		if err == nil {
			l.Close()
		}
		return err
	}
	all := []struct{ network, addr string }{
		{"tcp", "127.0.0.1:5000"},
		{"tcp", "[::]:5000"},
		{"tcp4", "0.0.0.0:5000"},
		{"tcp", "[::1]:5000"},
		{"udp", "127.0.0.1:5000"},
		{"udp", "[::]:5000"},
	}
	for _, l := range all {
		if err := listens(l.network, l.addr); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("listen on %s %s: %v", l.network, l.addr, err)
		}
	}
	// Without the hold the process listens, and does not get what it sends to itself.
	m.builtin.holds.release("web")
	stop := serveAt(t, "tcp", at(t, "127.0.0.1:5000"))
	got, err := ask(t, "", "tcp", netip.MustParseAddr("127.0.0.1"), 5000, patience)
	if err != nil || !strings.HasPrefix(got, "web ") {
		t.Errorf("positive control: %q, %v", got, err)
	}
	stop()

	for _, p := range mappingsOf(t, ports) {
		_, err := m.builtin.holds.take("web", web.ips, p)
		must(t, err)
	}
	must(t, m.Teardown(t.Context(), web.Pod))
	for _, l := range all {
		if err := listens(l.network, l.addr); err != nil {
			t.Errorf("after Teardown: listen on %s %s: %v", l.network, l.addr, err)
		}
	}
}

func mappingsOf(t *testing.T, mappings []PortMapping) []hostPort {
	t.Helper()
	ports, err := hostPorts(mappings)
	must(t, err)
	return ports
}

// A connection of the node to elsewhere has a port of its own, which is no reason to refuse a pod.
func TestAConnectionOfTheNodeKeepsNoPodFromAPort(t *testing.T) {
	m := started(t, testConfig(t))
	serve(t, "", "far", "tcp", 9000)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5900}}
	c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:9000")
	must(t, err)
	defer c.Close()
	web := connect(t, m, "web", PortMapping{Protocol: "tcp", HostPort: 5900, ContainerPort: 80})
	serve(t, web.NetNS, "web", "tcp", 80)
	gw4 := m.builtin.pools[0].gateway()
	expect(t, "a host port", "", "tcp", gw4, 5900, "web "+gw4.String())
}

// While coracled is away nothing keeps programs of the node from the pods' ports. A program that
// listens there by the time it is back keeps what it is sent.
func TestAProcessThatTookAPodsPortKeepsItsTraffic(t *testing.T) {
	c := testConfig(t)
	first := New(c)
	must(t, first.Start(t.Context()))
	web := connect(t, first, "web",
		PortMapping{Protocol: "tcp", HostPort: 5000, ContainerPort: 80},
		PortMapping{Protocol: "tcp", HostPort: 5001, ContainerPort: 80},
		PortMapping{Protocol: "udp", HostPort: 5002, ContainerPort: 80})
	serve(t, web.NetNS, "web", "tcp", 80)
	must(t, first.Close()) // its sockets close, as those of a process that was killed
	gw4 := first.builtin.pools[0].gateway()
	serveAt(t, "tcp", at(t, "127.0.0.1:5000"))
	if got, err := ask(t, "", "tcp", localhost, 5000, patience); err != nil || !strings.HasPrefix(got, "web ") {
		t.Fatalf("positive control: %q, %v", got, err)
	}
	m := started(t, c)
	must(t, m.Recover(t.Context(), []string{"web"}))
	expect(t, "the node's own", "", "tcp", localhost, 5000, "node")
	expect(t, "a port that is still the pod's", "", "tcp", localhost, 5001, "web "+gw4.String())
	for _, port := range []int{5001, 5002} {
		network := map[int]string{5001: "tcp", 5002: "udp"}[port]
		if network == "udp" {
			if pc, err := net.ListenPacket(network, "127.0.0.1:"+strconv.Itoa(port)); err == nil {
				pc.Close()
				t.Error("the pod's UDP port is not held")
			}
			continue
		}
		if l, err := net.Listen(network, "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			l.Close()
			t.Error("the pod's TCP port is not held")
		}
	}
	if l, _ := m.builtin.lease("web"); len(l.Ports) != 2 {
		t.Errorf("the pod's record has %v", l.Ports)
	}
}

// What keeps coracled from holding a port, such as a lack of descriptors, does not take it from the
// pod.
func TestAPodKeepsAPortThatCannotBeHeld(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "web", PortMapping{Protocol: "tcp", HostPort: 5000, ContainerPort: 80})
	m.builtin.holds.release("web") // as after a restart
	var err error
	nofiles.Run(t, func() { err = m.builtin.rehold(t.Context(), map[string]bool{"web": true}) })
	if err != nil && !errors.Is(err, unix.EMFILE) { // the record cannot be written either
		t.Fatal(err)
	}
	if n := len(m.builtin.holds.byPod["web"]); n != 0 {
		t.Fatalf("%d ports were held without descriptors", n)
	}
	if l, _ := m.builtin.lease("web"); len(l.Ports) != 1 {
		t.Errorf("the pod's record has %v", l.Ports)
	}
}

// CNI's portmap plugin translates as the built-in network does, and does not look who listens.
func TestAPodOfCNIDoesNotGetAPortOfTheNode(t *testing.T) {
	c := testConfig(t)
	withCNI(t, &c)
	m := started(t, c)
	serveAt(t, "tcp", at(t, "127.0.0.1:5000"))
	path, _ := newNetNS(t)
	p := Pod{ID: "attacker", NetNS: path, Ports: []PortMapping{{Protocol: "tcp", HostPort: 5000, ContainerPort: 80}}}
	if _, err := m.Setup(t.Context(), p); !errors.Is(err, ErrPortInUse) {
		t.Errorf("the pod got the port: %v", err)
	}
	p.Ports[0].HostPort = 5001
	if _, err := m.Setup(t.Context(), p); err != nil {
		t.Errorf("a port that is free: %v", err)
	}
}
