// Package testnet gives tests a node in network namespaces of their own: pods on routed links, a
// machine outside, servers that say who they are, and clients. Nothing is left when the test ends.
package testnet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/coracle-project/coracle/cluster/internal/netspace"
)

// Addresses of the node and of the machine outside, on one network.
const (
	Node4, Node6       = "192.0.2.1", "2001:db8::1"
	Outside4, Outside6 = "192.0.2.9", "2001:db8::9"
)

// Patience is when a wait gives up. Silence is how long there is no answer before it counts as
// none. again is when a client sends a datagram once more that has no answer.
const (
	Patience = time.Minute
	Silence  = 300 * time.Millisecond
	again    = 2 * time.Second
)

// Space is a network namespace.
type Space struct {
	t    testing.TB
	Name string
	ns   netns.NsHandle
	// IPv4 and IPv6 are its addresses.
	IPv4, IPv6 netip.Addr
}

// Node is a node, with the machine outside that its default routes lead to.
type Node struct {
	Space
	Outside *Space
	pods    int
}

// New makes a node.
func New(t testing.TB) *Node { return furnish(t, newSpace(t, "node")) }

// Here makes a node of the network namespace that the test runs in, which must be the test's own.
func Here(t testing.TB) *Node {
	s := Space{t: t, Name: "node"}
	var err error
	if s.ns, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	n := furnish(t, s)
	t.Cleanup(func() {
		n.run("ip link del out") // the routes go with it
		_ = s.ns.Close()
	})
	return n
}

func furnish(t testing.TB, node Space) *Node {
	n := &Node{Space: node}
	outside := newSpace(t, "outside")
	n.Outside = &outside
	n.link(n.Outside, "out", netip.MustParseAddr(Node4), netip.MustParseAddr(Node6), netip.MustParseAddr(Outside4),
		netip.MustParseAddr(Outside6))
	n.Within(func() {
		n.run("ip addr add " + Node4 + "/24 dev out")
		n.run("ip addr add " + Node6 + "/64 dev out nodad")
		n.run("ip route add default via " + Outside4)
		n.run("ip route add default via " + Outside6)
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
				t.Error(err)
			}
		}
	})
	outside.Within(func() {
		n.run("ip addr add " + Outside4 + "/24 dev eth0")
		n.run("ip addr add " + Outside6 + "/64 dev eth0 nodad")
		n.run("ip route add default via " + Node4) // it sends what is for Services to the node
		n.run("ip route add default via " + Node6)
	})
	return n
}

// NewSpace makes a network namespace that has only a loopback.
func NewSpace(t testing.TB, name string) *Space {
	s := newSpace(t, name)
	return &s
}

// Wire connects two spaces by a link, which has a name in each.
func Wire(a *Space, nameA string, b *Space, nameB string) {
	a.Within(func() {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(int(b.ns))}
		if err := netlink.LinkAdd(veth); err != nil {
			a.t.Fatal(err)
		}
		a.run("ip link set " + nameA + " up")
	})
	b.Within(func() { b.run("ip link set " + nameB + " up") })
}

func newSpace(t testing.TB, name string) Space {
	s := Space{t: t, Name: name}
	var err error
	if s.ns, err = netspace.New(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.ns.Close() })
	s.Within(func() { s.run("ip link set lo up") })
	return s
}

// link connects the node with another space by a link of that name here, and eth0 there.
func (n *Node) link(s *Space, name string, node4, node6, ip4, ip6 netip.Addr) {
	s.IPv4, s.IPv6 = ip4, ip6
	if s == n.Outside {
		n.IPv4, n.IPv6 = node4, node6
	}
	n.Within(func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(s.ns)),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			n.t.Fatal(err)
		}
		n.run("ip link set " + name + " up")
	})
	s.Within(func() { s.run("ip link set eth0 up") })
}

// Pod makes a pod with a routed link.
func (n *Node) Pod(name string) *Space {
	n.t.Helper()
	n.pods++
	s := newSpace(n.t, name)
	ip4 := netip.AddrFrom4([4]byte{10, 244, 0, byte(n.pods + 1)})
	ip6 := netip.MustParseAddr(fmt.Sprintf("fd00:244::%x", n.pods+1))
	link := fmt.Sprintf("pod%d", n.pods)
	n.link(&s, link, n.IPv4, n.IPv6, ip4, ip6)
	n.Within(func() {
		n.run("ip route add " + ip4.String() + " dev " + link + " src " + Node4)
		n.run("ip route add " + ip6.String() + " dev " + link)
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/proxy_arp", []byte("1"), 0); err != nil {
			n.t.Error(err)
		}
		n.run("ip addr add fe80::1/64 dev " + link + " nodad")
	})
	s.Within(func() {
		s.run("ip addr add " + ip4.String() + "/32 dev eth0")
		s.run("ip addr add " + ip6.String() + "/128 dev eth0 nodad")
		s.run("ip route add 169.254.1.1 dev eth0")
		s.run("ip route add default via 169.254.1.1 dev eth0")
		s.run("ip route add default via fe80::1 dev eth0")
	})
	return &s
}

// Within runs f in the space, on a thread of its own.
func (s *Space) Within(f func()) {
	if err := s.within(func() error { f(); return nil }); err != nil {
		s.t.Error(err)
	}
}

// within returns the error of f, or why f could not run in the space.
func (s *Space) within(f func() error) error {
	return netspace.Within(s.ns, f)
}

// Run runs a program in the space and returns what it prints.
func (s *Space) Run(command string) (out string) {
	s.t.Helper()
	s.Within(func() { out = s.run(command) })
	return out
}

func (s *Space) run(command string) string {
	s.t.Helper()
	args := strings.Fields(command)
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err != nil {
		s.t.Errorf("%s: %s: %v: %s", s.Name, command, err, out)
	}
	return string(out)
}

// Serve answers every connection to, or packet at, a port with the space's name and the sender's
// address, until the test ends or stop is called. What a connection sends after that is sent back.
func (s *Space) Serve(network string, port int) (stop func()) {
	s.t.Helper()
	at := fmt.Sprintf(":%d", port)
	var end io.Closer
	done := make(chan struct{})
	if strings.HasPrefix(network, "udp") {
		var pc net.PacketConn
		err := s.within(func() (err error) { pc, err = net.ListenPacket(network, at); return err })
		if err != nil {
			s.t.Fatal(err)
		}
		end = pc
		go func() {
			defer close(done)
			buf := make([]byte, 100)
			for {
				_, from, err := pc.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = pc.WriteTo([]byte(s.answer(from)), from)
			}
		}()
	} else {
		var l net.Listener
		err := s.within(func() (err error) { l, err = net.Listen(network, at); return err })
		if err != nil {
			s.t.Fatal(err)
		}
		end = l
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					_, _ = io.WriteString(c, s.answer(c.RemoteAddr())+"\n")
					_, _ = io.Copy(c, c)
				}()
			}
		}()
	}
	stop = func() { _ = end.Close(); <-done }
	s.t.Cleanup(stop)
	return stop
}

func (s *Space) answer(from net.Addr) string {
	ap, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return err.Error()
	}
	return s.Name + " " + ap.Addr().Unmap().String()
}

// Dial connects to an address.
func (s *Space) Dial(network, address string) (conn net.Conn, err error) {
	return s.DialWithin(network, address, Patience)
}

// DialWithin connects to an address, and gives up after a time.
func (s *Space) DialWithin(network, address string, limit time.Duration) (conn net.Conn, err error) {
	err = s.within(func() (err error) { conn, err = net.DialTimeout(network, address, limit); return err })
	return conn, err
}

// Ask returns the first answer from an address: who answers, and which sender it sees. A datagram
// may be lost, for example an answer that is on its way while its flow is forgotten, so another one
// follows, of a flow of its own.
func (s *Space) Ask(network, address string) (answer string, err error) {
	patience := Patience
	if strings.HasPrefix(network, "udp") {
		patience = again
	}
	for deadline := time.Now().Add(Patience); ; {
		if answer, err = s.ask(network, address, patience); !timedOut(err) || time.Now().After(deadline) {
			return answer, err
		}
	}
}

// Unanswered reports whether there is no answer at all, not even a refusal.
func (s *Space) Unanswered(network, address string) error {
	answer, err := s.ask(network, address, Silence)
	if timedOut(err) {
		return nil
	}
	return fmt.Errorf("%s got %q, %v from %s", s.Name, answer, err, address)
}

func timedOut(err error) bool {
	var failed net.Error
	return errors.As(err, &failed) && failed.Timeout()
}

// ask waits so long for a connection, or for the answer to a datagram. A connection that is open
// has been answered by the kernel: how long a busy server takes to say something does not count.
func (s *Space) ask(network, address string, patience time.Duration) (string, error) {
	conn, err := s.DialWithin(network, address, patience)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	udp := strings.HasPrefix(network, "udp")
	if !udp {
		patience = Patience
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	if udp {
		if _, err := conn.Write([]byte("x")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 200)
	n, err := conn.Read(buf)
	return strings.TrimSpace(string(buf[:n])), err
}

// Start starts a program in the space. The caller ends it.
func (s *Space) Start(cmd *exec.Cmd) error { return s.within(cmd.Start) }

// ListenIP gets all packets of a protocol such as ip4:132 that come to the space, until the test
// ends.
func (s *Space) ListenIP(network string) net.PacketConn {
	s.t.Helper()
	var pc net.PacketConn
	err := s.within(func() (err error) { pc, err = net.ListenPacket(network, ""); return err })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = pc.Close() })
	return pc
}
