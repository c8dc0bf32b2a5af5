package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// sctpSocket is one that speaks like one of TCP (RFC 6458, section 4), bound to an address.
func sctpSocket(a netip.AddrPort) (fd int, err error) {
	family := unix.AF_INET
	if a.Addr().Is6() {
		family = unix.AF_INET6
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
		return -1, err
	}
	patience := unix.NsecToTimeval(testnet.Patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience), // of connect, too
		unix.Bind(fd, sockaddr(a)),
	)
	return fd, err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// serveSCTP answers associations with the sender's address, and echoes what they send.
func serveSCTP(t *testing.T, s *testnet.Space, a netip.AddrPort) {
	t.Helper()
	var l net.Listener
	var err error
	s.Within(func() {
		var fd int
		if fd, err = sctpSocket(a); err == nil {
			err = unix.Listen(fd, 8)
		}
		if err != nil {
			return
		}
		f := os.NewFile(uintptr(fd), "sctp")
		defer f.Close()
		l, err = net.FileListener(f) // to Go it is one of TCP
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 100)
			_, _ = c.Write([]byte(c.RemoteAddr().(*net.TCPAddr).IP.String()))
			n, _ := c.Read(buf)
			_, _ = c.Write(buf[:n])
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

// associate returns which sender the server sees, and checks that data goes both ways.
func associate(s *testnet.Space, from netip.Addr, to netip.AddrPort) (seen string, err error) {
	var c net.Conn
	s.Within(func() {
		var fd int
		if fd, err = sctpSocket(netip.AddrPortFrom(from, 0)); err == nil {
			err = unix.Connect(fd, sockaddr(to))
		}
		if fd >= 0 {
			f := os.NewFile(uintptr(fd), "sctp")
			defer f.Close()
			if err == nil {
				c, err = net.FileConn(f)
			}
		}
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testnet.Patience))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return "", err
	}
	seen = string(buf[:n])
	if _, err := c.Write([]byte("both ways")); err != nil {
		return seen, err
	}
	if n, err = c.Read(buf); err != nil || string(buf[:n]) != "both ways" {
		return seen, fmt.Errorf("the answer is %q, %w", buf[:n], err)
	}
	return seen, nil
}

// What TestSCTP shows of one packet, for associations: through a Service's address, a node port,
// and from a pod to itself.
func TestSCTPAssociations(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		testnet.Untested(t, "SCTP associations through Services: this kernel has no SCTP sockets (make test-vm VM_PARTS=integration tests them)")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	n := newNode(t)
	ports := map[Key]*Port{}
	families := []struct {
		service, node          string
		pod, client, localhost netip.Addr
	}{
		{service4, testnet.Node4, n.b.IPv4, n.a.IPv4, n.IPv4},
		{service6, testnet.Node6, n.b.IPv6, n.a.IPv6, n.IPv6},
	}
	for _, f := range families {
		ports[Key(f.service)] = &Port{
			Protocol: unix.IPPROTO_SCTP, IPv6: f.pod.Is6(), Backends: []Backend{{Endpoints: []netip.AddrPort{netip.AddrPortFrom(f.pod, 36412)}}},
			Frontends: []Frontend{{Addr: netip.MustParseAddr(f.service), Port: 9899}, {Port: 30899, Masquerade: true}},
		}
		serveSCTP(t, n.b, netip.AddrPortFrom(f.pod, 36412))
	}
	n.apply(n.open(), ports)
	for _, f := range families {
		service := netip.AddrPortFrom(netip.MustParseAddr(f.service), 9899)
		nodePort := netip.AddrPortFrom(netip.MustParseAddr(f.node), 30899)
		for _, way := range []struct {
			name   string
			from   *testnet.Space
			source netip.Addr
			to     netip.AddrPort
			want   string
		}{
			{"a pod by the Service's address", n.a, f.client, service, f.client.String()},
			{"a pod by a node port", n.a, f.client, nodePort, f.node},
			{"the node by the Service's address", &n.Space, f.localhost, service, f.node},
			{"a pod to itself", n.b, f.pod, service, f.node},
		} {
			if got, err := associate(way.from, way.source, way.to); err != nil || got != way.want {
				t.Errorf("%s %s: the server sees %q, %v, want %q", f.service, way.name, got, err, way.want)
			}
		}
	}
}
