package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What becomes of pods' host ports when coracled starts again.

var localhost = netip.MustParseAddr("127.0.0.1")

// tcpPort and udpPort are mappings to the same port of the pod.
func tcpPort(p uint16) PortMapping {
	return PortMapping{Protocol: "tcp", HostPort: p, ContainerPort: p}
}

func udpPort(p uint16) PortMapping {
	return PortMapping{Protocol: "udp", HostPort: p, ContainerPort: p}
}

// kept returns the pod's host ports according to its lease.
func kept(m *Manager, podID string) string {
	l, _ := m.builtin.lease(podID)
	var all []string
	for _, p := range l.Ports {
		all = append(all, p.String())
	}
	return strings.Join(all, " ")
}

// inUse reports whether a program of the node cannot listen on a port.
func inUse(t *testing.T, network, addr string) bool {
	t.Helper()
	var err error
	if network == "udp" {
		var pc net.PacketConn
		if pc, err = net.ListenPacket(network, addr); err == nil {
			pc.Close()
		}
	} else {
		var l net.Listener
		if l, err = net.Listen(network, addr); err == nil {
			l.Close()
		}
	}
	if err != nil && !errors.Is(err, unix.EADDRINUSE) {
		t.Fatal(err)
	}
	return err != nil
}

// forgetHeld makes a pod's record one of a coracled that did not hold host ports.
func forgetHeld(t *testing.T, m *Manager, podID string) {
	t.Helper()
	path := m.builtin.records.path(podID)
	data, err := os.ReadFile(path)
	must(t, err)
	var fields map[string]any
	must(t, json.Unmarshal(data, &fields))
	delete(fields, "held")
	data, err = json.Marshal(fields)
	must(t, err)
	must(t, os.WriteFile(path, data, 0o600))
}

// Regression: an upgrade closed the host port of a DNS pod next to systemd-resolved, which is on a
// loopback address. Both had worked under a coracled that held nothing.
func TestAPodKeepsAPortThatAProcessAlwaysShared(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	dns := connect(t, m, "dns", udpPort(53), tcpPort(80))
	serve(t, dns.NetNS, "dns", "udp", 53)
	serve(t, dns.NetNS, "dns", "tcp", 80)
	m.builtin.holds.close()
	forgetHeld(t, m, "dns")
	stopResolver := serveAt(t, "udp", at(t, "127.0.0.53:53"))
	stopWeb := serveAt(t, "tcp", at(t, "127.0.0.1:80"))

	gw4 := m.builtin.pools[0].gateway()
	for _, start := range []string{"the upgrade", "the next start"} {
		var log strings.Builder
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		m = started(t, c)
		must(t, m.Recover(t.Context(), []string{"dns"}))
		if got := kept(m, "dns"); got != "53/udp 80/tcp" {
			t.Fatalf("%s: the pod has %q", start, got)
		}
		expect(t, start, "", "tcp", gw4, 80, "dns "+gw4.String()) // first: TCP repeats what a new link drops
		expect(t, start, "", "udp", gw4, 53, "dns "+gw4.String())
		for _, want := range []string{"127.0.0.53:53", "127.0.0.1:80"} {
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), want) {
				t.Errorf("%s: no warning about %s: %s", start, want, log.String())
			}
		}
	}

	// Once a coracled holds them, a process that takes one keeps its traffic.
	stopResolver()
	stopWeb()
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"dns"}))
	if !inUse(t, "udp", "127.0.0.53:53") || !inUse(t, "tcp", "127.0.0.1:80") {
		t.Error("the ports are not held")
	}
	m.builtin.holds.close()
	serveAt(t, "tcp", at(t, "127.0.0.1:80"))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"dns"}))
	if got := kept(m, "dns"); got != "53/udp" {
		t.Errorf("after a process took a held port, the pod has %q", got)
	}
	expect(t, "the node's own", "", "tcp", localhost, 80, "node")
}

// Regression: Recover took UDP ports from pods that this daemon had connected while it was still at
// work: a bound UDP socket of its own looks like that of any process.
func TestRecoverKeepsWhatThisDaemonHolds(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "web", udpPort(5000), tcpPort(5001))
	for range 2 {
		must(t, m.Recover(t.Context(), []string{"web"}))
	}
	if got := kept(m, "web"); got != "5000/udp 5001/tcp" {
		t.Errorf("the pod has %q", got)
	}
	if !inUse(t, "udp", "127.0.0.1:5000") || !inUse(t, "tcp", "127.0.0.1:5001") {
		t.Error("the ports are not held")
	}
}

// Programs of the node cannot take a port for as long as teardowns take, and these may take all the
// time that Recover has.
func TestRecoverHoldsPortsBeforeTeardowns(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	connect(t, m, "web", tcpPort(5000), tcpPort(5001))
	connect(t, m, "gone")
	m.builtin.holds.close()
	forgetHeld(t, m, "web")
	serveAt(t, "tcp", at(t, "127.0.0.1:5001"))
	log := newTold()
	c.Log = slog.New(log)
	m = started(t, c)
	release, err := m.builtin.busy.Acquire(t.Context(), "gone") // its teardown hangs
	must(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	recovered := inBackground(func() error { return m.Recover(ctx, []string{"web"}) })
	for seen := false; !seen; {
		select {
		case line := <-log.lines:
			seen = strings.Contains(line, "pod=web port=5001/tcp")
		case <-ctx.Done():
			t.Error("the ports were not looked at before the teardown")
			seen = true
		}
	}
	cancel()
	if err := recovered(); !errors.Is(err, context.Canceled) {
		t.Errorf("Recover: %v", err)
	}
	if !inUse(t, "tcp", "127.0.0.1:5000") {
		t.Error("the pod's port is not held")
	}
}

func TestRecoverTakesNoPortsAfterItsTime(t *testing.T) {
	m := started(t, testConfig(t))
	connect(t, m, "web", tcpPort(5000))
	m.builtin.holds.close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Recover(ctx, []string{"web"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Recover: %v", err)
	}
	if inUse(t, "tcp", "127.0.0.1:5000") {
		t.Error("the port is held")
	}
}

// Regression: a pod without IPv6 lost its port to, or did not get it from, a process that listens
// on IPv6 only.
func TestAPodWithoutIPv6SharesAPortWithIPv6(t *testing.T) {
	c := testConfig(t)
	c.Subnets = []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")}
	m := started(t, c)
	first := connect(t, m, "first", tcpPort(5000), tcpPort(5001))
	m.builtin.holds.close()
	for i := range 4 {
		host := []string{"[::]:", "[::1]:"}[i%2]
		serveAt(t, "tcp6", at(t, host+strconv.Itoa(5000+i)))
	}
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"first"}))
	if got := kept(m, "first"); got != "5000/tcp 5001/tcp" {
		t.Errorf("at a restart the pod keeps %q", got)
	}
	second := connect(t, m, "second", tcpPort(5002), tcpPort(5003))
	gw4 := m.builtin.pools[0].gateway().String()
	for i, p := range []testPod{first, first, second, second} {
		port := uint16(5000 + i)
		serve(t, p.NetNS, p.ID, "tcp", port)
		expect(t, "the pod", "", "tcp", localhost, port, p.ID+" "+gw4)
		expect(t, "the node's own", "", "tcp", netip.IPv6Loopback(), port, "node")
		if !inUse(t, "tcp", fmt.Sprintf("127.0.0.1:%d", port)) {
			t.Errorf("port %d is not held", port)
		}
	}
}

// What the node sends to ::1 is not translated, so a process that listens there is in no one's way.
func TestAPodSharesAPortWithTheIPv6Loopback(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	first := connect(t, m, "first", tcpPort(5000))
	m.builtin.holds.close()
	serveAt(t, "tcp", at(t, "[::1]:5000"))
	serveAt(t, "tcp", at(t, "[::1]:5001"))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"first"}))
	if got := kept(m, "first"); got != "5000/tcp" {
		t.Errorf("at a restart the pod keeps %q", got)
	}
	second := connect(t, m, "second", tcpPort(5001))
	gw4, gw6 := m.builtin.pools[0].gateway(), m.builtin.pools[1].gateway()
	for i, p := range []testPod{first, second} {
		port := uint16(5000 + i)
		serve(t, p.NetNS, p.ID, "tcp", port)
		expect(t, "the pod", "", "tcp", localhost, port, p.ID+" "+gw4.String())
		expect(t, "the pod", "", "tcp", gw6, port, p.ID+" "+gw6.String())
		expect(t, "the node's own", "", "tcp", netip.IPv6Loopback(), port, "node")
	}
}

// Regression: an UDP socket of a client, such as that of a DNS query during the restart, cost a pod
// its port. The kernel may give a client any port of ip_local_port_range.
func TestAClientOfTheNodeCostsNoPodItsUDPPort(t *testing.T) {
	c := testConfig(t)
	m := started(t, c)
	span, err := readSysctl("ipv4/ip_local_port_range")
	must(t, err)
	var low uint16
	_, err = fmt.Sscan(span, &low)
	must(t, err)
	web := connect(t, m, "web", udpPort(low), udpPort(low-1))
	serve(t, web.NetNS, "web", "udp", low)
	gw4 := m.builtin.pools[0].gateway()
	serve(t, web.NetNS, "web", "tcp", 80)
	expect(t, "the link sends", "", "tcp", web.ip4(), 80, "web "+gw4.String()) // by TCP, which repeats what a new link drops
	m.builtin.holds.close()
	stop := serveAt(t, "udp", netip.AddrPortFrom(netip.IPv4Unspecified(), low))
	serveAt(t, "udp", netip.AddrPortFrom(netip.IPv4Unspecified(), low-1))
	var log strings.Builder
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"web"}))
	want := fmt.Sprintf("%d/udp", low)
	if got := kept(m, "web"); got != want {
		t.Errorf("the pod keeps %q, want %q; the other is that of a server", got, want)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "port="+want) {
		t.Errorf("no warning: %s", log.String())
	}
	stop()
	expect(t, "the pod", "", "udp", gw4, low, "web "+gw4.String())
	// At the next start the client is gone.
	m = started(t, c)
	must(t, m.Recover(t.Context(), []string{"web"}))
	if !inUse(t, "udp", fmt.Sprintf("127.0.0.1:%d", low)) {
		t.Error("the port is not held")
	}
}
