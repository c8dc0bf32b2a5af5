package nodeaddr

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// serve answers each connection to an address of m with name, until the test ends.
func (m *machine) serve(address, name string) {
	m.t.Helper()
	var l net.Listener
	var err error
	m.do(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
}

// asks connects from m and returns who answers, or the error of the connection.
func (m *machine) asks(address string) (name string) {
	m.do(func() {
		conn, err := net.DialTimeout("tcp", address, time.Minute)
		if err != nil {
			name = err.Error()
			if errors.Is(err, unix.ECONNREFUSED) {
				name = "refused"
			}
			return
		}
		defer conn.Close()
		answer, _ := io.ReadAll(conn)
		name = string(answer)
	})
	return name
}

// serveUDP answers each datagram to an address of m with name, until the test ends.
func (m *machine) serveUDP(address, name string) {
	m.t.Helper()
	var conn net.PacketConn
	var err error
	m.do(func() { conn, err = net.ListenPacket("udp", address) })
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for {
			_, from, err := conn.ReadFrom(make([]byte, 16))
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(name), from)
		}
	}()
}

// asksUDP sends a datagram from m and returns who answers, or the error.
func (m *machine) asksUDP(address string) (name string) {
	m.do(func() {
		conn, err := net.Dial("udp", address)
		if err != nil {
			name = err.Error()
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		answer := make([]byte, 64)
		_, err = conn.Write([]byte("x"))
		n := 0
		if err == nil {
			n, err = conn.Read(answer)
		}
		if name = string(answer[:n]); err != nil {
			name = err.Error()
		}
	})
	return name
}

// tracked is how many connections the kernel keeps track of in m.
func (m *machine) tracked() (n int) {
	m.t.Helper()
	m.do(func() {
		data, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(data)))
		}
		if err != nil {
			m.t.Error(err)
		}
	})
	return n
}

// hostPort has port 443 of each address of m be that of a pod, as runtimes do for host ports.
func (m *machine) hostPort(pod string) {
	m.do(func() {
		conn, err := nftables.New()
		if err != nil {
			m.t.Error(err)
			return
		}
		t := conn.AddTable(&nftables.Table{Name: "hostports", Family: nftables.TableFamilyIPv4})
		chain := conn.AddChain(&nftables.Chain{
			Table: t, Name: "prerouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting,
			Priority: nftables.ChainPriorityNATDest,
		})
		conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, 443)},
			&expr.Immediate{Register: 1, Data: netip.MustParseAddr(pod).AsSlice()},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		}})
		if err := errors.Join(conn.Flush(), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)); err != nil {
			m.t.Error(err)
		}
	})
}

// The API server answers at the port of its Service, while processes of the node and pods have that
// port of the node's other addresses. Without the redirection, who has the port of all addresses
// has the Service's, too.
func TestRedirect(t *testing.T) {
	node := newMachine(t)
	client, pod := node.link("pod0", 3), node.link("pod1", 4)
	for _, link := range []string{"pod0", "pod1"} {
		node.ip("link set " + link + " group " + strconv.Itoa(podGroup))
	}
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range held {
		node.serve(netip.AddrPortFrom(addr, 6443).String(), "api")
		var restore func() error
		at := netip.AddrPortFrom(addr, 443)
		node.do(func() { restore, err = Redirect(at, 6443) })
		if err != nil {
			t.Fatal(err)
		}
		for name, from := range map[string]*machine{"a pod": client, "the node": node} {
			if got := from.asks(at.String()); got != "api" {
				t.Errorf("%s asks %s: %s", name, at, got)
			}
		}
		node.do(func() {
			if _, err := Redirect(at, 6443); err == nil {
				t.Error("a port is redirected twice")
			}
		})
		if err := restore(); err != nil {
			t.Error(err)
		}
		if got := client.asks(at.String()); got != "refused" {
			t.Errorf("afterwards a pod asks %s: %s", at, got)
		}
	}

	at := netip.AddrPortFrom(held[0], 443)
	pod.serve(":443", "pod")
	node.serve(":443", "process") // as can one that listens on all addresses
	var restore func() error
	node.do(func() { restore, err = Redirect(at, 6443) })
	if err != nil {
		t.Fatal(err)
	}
	if got := client.asks("192.0.3.1:443"); got != "process" {
		t.Errorf("a pod asks the node's port: %s", got)
	}
	if got := client.asks(at.String()); got != "api" {
		t.Errorf("next to a process that listens on all addresses, a pod asks %s: %s", at, got)
	}
	node.hostPort("192.0.4.2")
	if got := client.asks("192.0.3.1:443"); got != "pod" {
		t.Errorf("a pod asks the node's port, which another pod has: %s", got)
	}
	if got := client.asks(at.String()); got != "api" {
		t.Errorf("next to a pod with the host port, a pod asks %s: %s", at, got)
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if got := client.asks(at.String()); got != "pod" {
		t.Errorf("positive control: without the redirection a pod asks %s: %s", at, got)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// A server answers at a port of a held address by UDP and TCP, without the kernel keeping track,
// while processes of the node have that port on all addresses.
func TestRename(t *testing.T) {
	node := newMachine(t)
	client, pod := node.link("pod0", 3), node.link("pod1", 4)
	for _, link := range []string{"pod0", "pod1"} {
		node.ip("link set " + link + " group " + strconv.Itoa(podGroup))
	}
	node.hostPort(hostsOf(4, 2)[0].String()) // has the kernel keep track
	pod.serve(":443", "pod")
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	node.serve(":53", "process") // before
	node.serveUDP(":53", "process")
	for _, addr := range held {
		at := netip.AddrPortFrom(addr, 53)
		node.serve(netip.AddrPortFrom(addr, 334).String(), "dns")
		node.serveUDP(netip.AddrPortFrom(addr, 334).String(), "dns")
		if got := client.asks(at.String()); got != "process" {
			t.Errorf("positive control: before, a pod asks %s: %s", at, got)
		}
		var restore func() error
		node.do(func() { restore, err = Rename(at, 334) })
		if err != nil {
			t.Fatal(err)
		}
		before := node.tracked()
		for name, from := range map[string]*machine{"a pod": client, "the node": node} {
			if got := from.asks(at.String()); got != "dns" {
				t.Errorf("TCP: %s asks %s: %s", name, at, got)
			}
			if got := from.asksUDP(at.String()); got != "dns" {
				t.Errorf("UDP: %s asks %s: %s", name, at, got)
			}
		}
		if after := node.tracked(); after > before {
			t.Errorf("the kernel keeps track of %d connections more", after-before)
		}
		before = node.tracked() // less than above, if one has expired
		if got := client.asksUDP(netip.AddrPortFrom(hostsOf(3, 1)[0], 53).String()); got != "process" {
			t.Errorf("a pod asks the node's own port: %s", got)
		}
		if node.tracked() == before {
			t.Error("positive control: the kernel keeps track of nothing at all")
		}
		node.do(func() {
			if _, err := Rename(at, 334); err == nil {
				t.Error("a port is renamed twice")
			}
		})
		if err := restore(); err != nil {
			t.Error(err)
		}
		if got := client.asks(at.String()); got != "process" {
			t.Errorf("afterwards a pod asks %s: %s", at, got)
		}
	}
	at := netip.AddrPortFrom(held[0], 54)
	var restore func() error
	node.do(func() { restore, err = Rename(at, 334) })
	if err != nil {
		t.Fatal(err)
	}
	node.serve(":54", "process") // and later
	node.serveUDP(":54", "process")
	if tcp, udp := client.asks(at.String()), client.asksUDP(at.String()); tcp != "dns" || udp != "dns" {
		t.Errorf("next to a process that came later, a pod asks %s: TCP %s, UDP %s", at, tcp, udp)
	}
	if err := errors.Join(restore(), release()); err != nil {
		t.Error(err)
	}
}
