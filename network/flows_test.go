package network

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/conntrack"
)

// Regression: each pod that ended kept a CPU for 10 ms from those that started, as the kernel
// walked its whole table of connections, also where none had gone to the pod.
func TestConnectionsAreOnlyForgottenOfPodsThatHadSome(t *testing.T) {
	m := started(t, testConfig(t))
	newOutside(t)
	a, b := connect(t, m, "a"), connect(t, m, "b")
	// This one is tracked as if it went to a, but leaves by another link.
	elsewhere := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "uplink") }); cerr != nil {
			return cerr
		}
		return err
	}}
	stray, err := elsewhere.ListenPacket(t.Context(), "udp4", ":0")
	must(t, err)
	defer stray.Close()
	_, err = stray.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.ip4(), 80)))
	must(t, err)
	if n := connectionsTo(t, a.ip4()); n != 1 {
		t.Fatalf("%d connections to a are tracked, want 1", n)
	}
	reached := func(want ...string) {
		t.Helper()
		got, err := m.builtin.fw.Reached()
		must(t, err)
		slices.Sort(want)
		if links := slices.Sorted(maps.Keys(got)); !slices.Equal(links, want) {
			t.Errorf("links with connections are %v, want %v", links, want)
		}
	}
	gone := func(p testPod) {
		t.Helper()
		must(t, m.Teardown(context.WithoutCancel(t.Context()), p.Pod))
		must(t, m.builtin.reaper.idle(t.Context()))
	}
	reached()
	serve(t, b.NetNS, "b", "udp", 80)
	for _, ip := range b.ips {
		_, err := ask(t, "", "udp", ip, 80, patience)
		must(t, err)
		if n := connectionsTo(t, ip); n != 1 {
			t.Errorf("%d connections to %s are tracked, want 1", n, ip)
		}
	}
	reached(vethName("b"))
	gone(a)
	if n := connectionsTo(t, a.ip4()); n != 1 {
		t.Errorf("%d connections are tracked that did not go to a, want 1: the kernel's table was walked", n)
	}
	gone(b)
	if n := connectionsTo(t, b.ips...); n != 0 {
		t.Errorf("%d connections to b are tracked, want none", n)
	}
	reached()
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
				if when == "before" {
					again(t, m)
					must(t, m.Teardown(t.Context(), a.Pod))
				} else {
					l, _ := m.builtin.lease("a")
					must(t, m.builtin.retire(t.Context(), l))
					again(t, m)
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
