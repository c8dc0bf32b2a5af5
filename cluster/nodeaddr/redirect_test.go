package nodeaddr

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
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
			Table: t, Name: "prerouting", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
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

// The API server answers at the port of its Service, while processes of the node and pods have that port of the
// node's other addresses. Without the redirection, who has the port of all addresses has the Service's, too.
func TestRedirect(t *testing.T) {
	node := newMachine(t)
	client, pod := node.link("pod0", 3), node.link("pod1", 4)
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
