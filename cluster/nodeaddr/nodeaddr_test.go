package nodeaddr

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

var held = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}

// machine is a network namespace with the thread that is in it.
type machine struct {
	t    *testing.T
	tid  int
	work chan func()
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		m.tid = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range m.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("it must be root: %v", err)
	}
	t.Cleanup(func() { close(m.work) })
	m.ip("link set lo up")
	return m
}

// do runs f in the namespace.
func (m *machine) do(f func()) {
	done := make(chan struct{})
	m.work <- func() { defer close(done); f() }
	<-done
}

func (m *machine) ip(args string) {
	m.t.Helper()
	m.do(func() {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			m.t.Errorf("ip %s: %v: %s", args, err, out)
		}
	})
}

// link connects m by an interface of this name to a neighbour that routes everything to m. N numbers
// the networks between them.
func (m *machine) link(name string, n int) *machine {
	m.t.Helper()
	other := newMachine(m.t)
	m.ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", name, other.tid))
	for _, end := range []struct {
		m    *machine
		link string
		host int
	}{{m, name, 1}, {other, "eth0", 2}} {
		end.m.ip(fmt.Sprintf("addr add 192.0.%d.%d/24 dev %s", n, end.host, end.link))
		end.m.ip(fmt.Sprintf("addr add 2001:db8:%d::%d/64 dev %s nodad", n, end.host, end.link))
		end.m.ip("link set " + end.link + " up")
	}
	other.ip(fmt.Sprintf("route add default via 192.0.%d.1", n))
	other.ip(fmt.Sprintf("route add default via 2001:db8:%d::1", n))
	return other
}

// listen opens a UDP socket on all addresses of m that says where datagrams were sent to.
func (m *machine) listen() (port int, arrived func() netip.Addr) {
	m.t.Helper()
	var fd int
	var err error
	m.do(func() {
		if fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}),
			unix.Bind(fd, &unix.SockaddrInet6{}))
	})
	if err != nil {
		m.t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		m.t.Fatal(err)
	}
	port = name.(*unix.SockaddrInet6).Port
	m.t.Cleanup(func() { _ = unix.Close(fd) })
	return port, func() netip.Addr {
		m.t.Helper()
		control := make([]byte, 256)
		for {
			_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 16), control, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				m.t.Fatalf("no datagram arrives: %v", err)
			}
			messages, err := unix.ParseSocketControlMessage(control[:n])
			if err != nil || len(messages) != 1 || len(messages[0].Data) < 16 {
				m.t.Fatalf("%v, %v", messages, err)
			}
			addr, _ := netip.AddrFromSlice(messages[0].Data[:16])
			return addr.Unmap()
		}
	}
}

// send sends a datagram to a port of addr.
func (m *machine) send(addr netip.Addr, port int) {
	m.t.Helper()
	m.do(func() {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(port))))
		if err == nil {
			_, err = conn.Write([]byte("x"))
			_ = conn.Close()
		}
		if err != nil {
			m.t.Errorf("send to %s: %v", addr, err)
		}
	})
}

// reaches reports which of the held addresses m's datagrams reach. A last one to marker, which nothing
// protects, tells that all others have had their time.
func (m *machine) reaches(port int, marker string, arrived func() netip.Addr) (reached []netip.Addr) {
	m.t.Helper()
	for _, addr := range held {
		m.send(addr, port)
	}
	last := netip.MustParseAddr(marker)
	m.send(last, port)
	for addr := arrived(); addr != last; addr = arrived() {
		reached = append(reached, addr)
	}
	return reached
}

// hold calls Hold in the namespace.
func (m *machine) hold(addrs ...netip.Addr) (release func() error, err error) {
	m.do(func() { release, err = Hold(context.Background(), addrs) })
	return release, err
}

// left returns the held addresses and the tables that m has.
func (m *machine) left() (left []string) {
	m.t.Helper()
	m.do(func() {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			m.t.Error(err)
		}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && slices.Contains(held, prefix.Addr()) {
				left = append(left, a.String())
			}
		}
		conn, err := nftables.New()
		if err != nil {
			m.t.Error(err)
			return
		}
		tables, err := conn.ListTables()
		if err != nil {
			m.t.Error(err)
		}
		for _, table := range tables {
			left = append(left, table.Name)
		}
	})
	return left
}

// The node and its pods reach the addresses; a neighbour of an uplink that has a route to them does not,
// also when its interface has become an uplink later.
func TestNeighboursDoNotReachHeldAddresses(t *testing.T) {
	node := newMachine(t)
	lan, pod := node.link("lan", 2), node.link("pod0", 3)
	other := node.link("other", 4)
	node.ip("route add default via 192.0.2.2")
	port, arrived := node.listen()

	node.ip("addr add 10.96.0.10/32 dev lo scope host")
	node.ip("addr add fd00:96::a/128 dev lo")
	if got := lan.reaches(port, "192.0.2.1", arrived); !slices.Equal(got, held) {
		t.Fatalf("a neighbour reaches only %v of unprotected addresses: the test shows nothing", got)
	}
	release, err := node.hold(held...) // takes over what it finds on lo
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		from   *machine
		marker string
		want   []netip.Addr
	}{
		"a neighbour":                    {lan, "192.0.2.1", nil},
		"a pod":                          {pod, "192.0.3.1", held},
		"the node":                       {node, "192.0.3.1", held},
		"an interface that is no uplink": {other, "192.0.4.1", held},
	} {
		if got := tc.from.reaches(port, tc.marker, arrived); !slices.Equal(got, tc.want) {
			t.Errorf("%s reaches %v, not %v", name, got, tc.want)
		}
	}
	// A VPN's two halves of the address space, in a table of its own, over several links.
	node.ip("route add 0.0.0.0/1 table 77 nexthop via 192.0.4.2 nexthop via 192.0.2.2")
	for deadline := time.Now().Add(time.Minute); len(other.reaches(port, "192.0.4.1", arrived)) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("neighbours of a new uplink reach the addresses")
		}
	}
	node.ip("route del default")
	for deadline := time.Now().Add(time.Minute); len(lan.reaches(port, "192.0.2.1", arrived)) > 0; {
		if time.Now().After(deadline) {
			t.Fatal("neighbours of the first uplink, which has another route of that kind, reach the addresses")
		}
	}
	node.ip("route flush table 77")
	for deadline := time.Now().Add(time.Minute); len(other.reaches(port, "192.0.4.1", arrived)) < 2; {
		if time.Now().After(deadline) {
			t.Fatal("an interface that is no uplink any more stays cut off")
		}
	}
	if err := errors.Join(release(), release()); err != nil {
		t.Error(err)
	}
	if left := node.left(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestAddressesOfOthersAreNotTaken(t *testing.T) {
	node := newMachine(t)
	node.link("lan", 2)
	node.ip("addr add 10.96.0.10/24 dev lan")
	if _, err := node.hold(held...); !errors.Is(err, ErrTaken) {
		t.Errorf("an address of another interface: %v", err)
	}
	node.ip("addr del 10.96.0.10/24 dev lan")
	if left := node.left(); len(left) > 0 {
		t.Errorf("%v are left of a call that failed", left)
	}
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := node.hold(held[0]); !errors.Is(err, ErrHeld) {
		t.Errorf("an address that another holds: %v", err)
	}
	if left := node.left(); len(left) != 3 {
		t.Errorf("a call that failed has left only %v of what another holds", left)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// holding is the environment variable that makes the test program hold addresses until it is killed.
const holding = "CORACLE_TEST_HOLD_ADDRESSES"

func TestMain(m *testing.M) {
	if os.Getenv(holding) == "" {
		os.Exit(m.Run())
	}
	if _, err := Hold(context.Background(), held); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("holding")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or the test ends
	os.Exit(0)
}

func TestAddressesOfAKilledProcessAreTakenOver(t *testing.T) {
	node := newMachine(t)
	node.do(func() {
		self, err := os.Executable()
		if err != nil {
			t.Error(err)
			return
		}
		process := exec.Command(self)
		process.Env = append(os.Environ(), holding+"=1")
		stdin, err := process.StdinPipe()
		if err != nil {
			t.Error(err)
			return
		}
		defer stdin.Close()
		stdout, err := process.StdoutPipe()
		if err != nil {
			t.Error(err)
			return
		}
		if err := process.Start(); err != nil {
			t.Error(err)
			return
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "holding\n" {
			t.Errorf("%q, %v", line, err)
		}
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed
	})
	if left := node.left(); len(left) != 2 {
		t.Errorf("a killed process has left %v, not its two addresses", left)
	}
	release, err := node.hold(held...)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if left := node.left(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
