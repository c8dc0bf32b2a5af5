package network

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/conntrack"
	"github.com/coracle-project/coracle/network/firewall"
)

// Regression: each pod that ended kept a CPU for 10 ms from those that started, as the kernel
// walked its whole table of connections, also where none had gone to the pod.
func TestConnectionsAreOnlyForgottenOfPodsThatHadSome(t *testing.T) {
	m := started(t, testConfig(t))
	out := newOutside(t)
	a := connect(t, m, "a")
	send := func(link string, to netip.AddrPort) {
		t.Helper()
		by := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
			if cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), link) }); cerr != nil {
				return cerr
			}
			return err
		}}
		conn, err := by.ListenPacket(t.Context(), "udp4", ":0")
		must(t, err)
		defer conn.Close()
		_, err = conn.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(to))
		must(t, err)
	}
	send("uplink", netip.AddrPortFrom(a.ip4(), 80)) // tracked as if it went to a
	everyone := netip.MustParseAddr("224.0.0.251")
	send(vethName("a"), netip.AddrPortFrom(everyone, 5353))
	if connectionsTo(t, everyone) == 0 {
		t.Error("multicast to a is not tracked")
	}
	if n := connectionsTo(t, a.ip4()); n != 1 {
		t.Fatalf("%d connections to a are tracked, want 1", n)
	}
	noted := func(p testPod, want bool) {
		t.Helper()
		links, err := m.builtin.fw.Reached([]string{vethName(p.ID)})
		must(t, err)
		if got := len(links) == 1; got != want {
			t.Errorf("a connection to pod %s is noted: %v, want %v", p.ID, got, want)
		}
	}
	gone := func(p testPod, left int) {
		t.Helper()
		must(t, m.Teardown(t.Context(), p.Pod))
		must(t, m.builtin.reaper.idle(t.Context()))
		if n := connectionsTo(t, p.ips...); n != left {
			t.Errorf("pod %s is gone: %d connections to it are tracked, want %d", p.ID, n, left)
		}
		noted(p, false)
	}
	client := connect(t, m, "client")
	for way, from := range map[string]struct {
		path string
		to   func(testPod, netip.Addr) netip.Addr
		port uint16
	}{
		"host":               {"", func(_ testPod, ip netip.Addr) netip.Addr { return ip }, 80},
		"pod":                {client.NetNS, func(_ testPod, ip netip.Addr) netip.Addr { return ip }, 80},
		"host port, outside": {out, hostOf, 8080},
		"host port, pod":     {client.NetNS, hostOf, 8080},
	} {
		for i, to := range []string{"IPv4", "IPv6"} {
			p := connect(t, m, "server", PortMapping{Protocol: "udp", HostPort: 8080, ContainerPort: 80})
			noted(p, false)
			stop := answer(t, p.NetNS, "udp", ":80", func(net.Addr) string { return "hello" })
			_, err := ask(t, from.path, "udp", from.to(p, p.ips[i]), from.port, patience)
			if err != nil {
				t.Errorf("%s, %s: %v", way, to, err)
			}
			stop()
			if connectionsTo(t, p.ips[i]) == 0 {
				t.Errorf("%s, %s: no connection is tracked", way, to)
			}
			noted(p, true)
			gone(p, 0)
		}
	}
	gone(a, 1) // the stray one: the kernel's table was not walked
}

// hostOf is the host's address outside, of the family of a pod's.
func hostOf(_ testPod, ip netip.Addr) netip.Addr {
	if ip.Is4() {
		return hostOut4
	}
	return hostOut6
}

// Regression: it was an error.
func TestHostPortsWithoutATable(t *testing.T) {
	ports, err := firewall.New("missing", 7).PortsOf([]netip.Addr{outside4})
	if err != nil || len(ports) > 0 {
		t.Errorf("host ports %v, error %v; want none", ports, err)
	}
}

// What was noted of connections is gone with the table.
func TestConnectionsAreForgottenThoughTheTableWasMadeAgain(t *testing.T) {
	for name, again := range map[string]func(*testing.T, *Manager){
		"restored": func(t *testing.T, m *Manager) { must(t, m.builtin.restoreTable()) },
		"missing":  func(t *testing.T, m *Manager) { must(t, m.builtin.fw.Remove()) },
	} {
		for _, when := range []string{"before", "while"} {
			t.Run(name+" "+when+" the pod ends", func(t *testing.T) {
				m := started(t, testConfig(t))
				m.builtin.tableWatch.close() // or it restores the missing table
				a := connect(t, m, "a")
				serve(t, a.NetNS, "a", "udp", 80)
				_, err := ask(t, "", "udp", a.ip4(), 80, patience)
				must(t, err)
				again := func() {
					again(t, m)
					if connectionsTo(t, a.ip4()) == 0 {
						t.Error("no connection to the pod is tracked")
					}
				}
				if when == "before" {
					again()
					must(t, m.Teardown(t.Context(), a.Pod))
				} else {
					l, _ := m.builtin.lease("a")
					must(t, m.builtin.retire(t.Context(), l))
					again()
					m.builtin.reaper.add("a")
				}
				must(t, m.builtin.reaper.idle(t.Context()))
				if n := connectionsTo(t, a.ip4()); n != 0 {
					t.Errorf("%d connections to the pod that is gone are tracked", n)
				}
			})
		}
	}
}

// connectionsTo is how many connections to addresses are tracked.
func connectionsTo(t *testing.T, addresses ...netip.Addr) (n int) {
	t.Helper()
	tracker, err := conntrack.Open()
	must(t, err)
	defer tracker.Close()
	must(t, tracker.ListTo(addresses, func(*conntrack.Entry) bool {
		n++
		return true
	}))
	return n
}
