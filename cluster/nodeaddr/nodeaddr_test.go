package nodeaddr

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

var held = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}

// machine is a network namespace with the thread that is in it.
type machine struct {
	t    *testing.T
	tid  int
	work chan func()
	log  testkit.Log
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		m.tid = unix.Gettid()
		ready <- errors.Join(stay(), unix.Unshare(unix.CLONE_NEWNET))
		for f := range m.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("it must be root: %v", err)
	}
	t.Cleanup(func() { close(m.work) })
	m.ip("link set lo up")
	m.do(func() { // the rules are tested, not what a distribution sets
		for _, which := range []string{"all", "default"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+which+"/rp_filter", []byte("0"), 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

// stay keeps this thread on one processor: datagrams that leave from several may overtake each
// other, and the last one tells that all have had their time.
func stay() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := range len(may) * 64 {
		if may.IsSet(cpu) {
			one.Set(cpu)
			return unix.SchedSetaffinity(0, &one)
		}
	}
	return errors.New("there is no processor")
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

// link connects m by an interface of this name to a neighbour that routes everything to m. N
// numbers the networks between them.
func (m *machine) link(name string, n int) *machine {
	m.t.Helper()
	other := m.cable(name)
	m.address(name, n, 1)
	other.address("eth0", n, 2)
	other.routeBy(n)
	return other
}

// bridge connects m by a bridge of this name to as many neighbours that route everything to m.
func (m *machine) bridge(name string, n, neighbours int) (all []*machine) {
	m.t.Helper()
	m.ip("link add " + name + " type bridge")
	m.address(name, n, 1)
	for i := range neighbours {
		port := fmt.Sprintf("%s.%d", name, i)
		other := m.cable(port)
		m.ip("link set " + port + " up master " + name)
		other.address("eth0", n, 2+i)
		other.routeBy(n)
		all = append(all, other)
	}
	return all
}

// cable connects an interface of m to eth0 of a new machine.
func (m *machine) cable(name string) *machine {
	m.t.Helper()
	other := newMachine(m.t)
	m.ip(fmt.Sprintf("link add %s type veth peer name eth0 netns %d", name, other.tid))
	return other
}

// address gives an interface the address of a host in network n, and brings it up.
func (m *machine) address(link string, n, host int) {
	m.t.Helper()
	m.ip(fmt.Sprintf("addr add 192.0.%d.%d/24 dev %s", n, host, link))
	m.ip(fmt.Sprintf("addr add 2001:db8:%d::%d/64 dev %s nodad", n, host, link))
	m.ip("link set " + link + " up")
}

// routeBy has m send everything to the first host of network n.
func (m *machine) routeBy(n int) {
	m.t.Helper()
	m.ip(fmt.Sprintf("route add default via 192.0.%d.1", n))
	m.ip(fmt.Sprintf("route add default via 2001:db8:%d::1", n))
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

// send sends a datagram to a port of addr, from one of m's addresses or any if that is not valid.
func (m *machine) send(from, addr netip.Addr, port int) {
	m.t.Helper()
	m.do(func() {
		var local *net.UDPAddr
		if from.IsValid() {
			local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, uint16(port))))
		if err == nil {
			_, err = conn.Write([]byte("x"))
			_ = conn.Close()
		}
		if err != nil {
			m.t.Errorf("send to %s: %v", addr, err)
		}
	})
}

// reaches reports which of the held addresses m's datagrams reach, from certain addresses if there
// are any. Each is followed by one to the node's address in network n, which nothing protects: it
// tells that the first has had its time.
func (m *machine) reaches(port, n int, arrived func() netip.Addr, from ...netip.Addr) (reached []netip.Addr) {
	m.t.Helper()
	for i, addr := range held {
		var source netip.Addr
		if len(from) > 0 {
			source = from[i]
		}
		m.send(source, addr, port)
		last := hostsOf(n, 1)[i]
		m.send(netip.Addr{}, last, port)
		for addr := arrived(); addr != last; addr = arrived() {
			reached = append(reached, addr)
		}
	}
	return reached
}

// hostsOf are the addresses of a host in network n, of the families of held.
func hostsOf(n, host int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.0.%d.%d", n, host)), netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::%d", n, host))}
}

// hold calls Hold in the namespace, without pods but those of coracled.
func (m *machine) hold(addrs ...netip.Addr) (release func() error, err error) {
	m.do(func() { release, err = Hold(context.Background(), addrs, nil, m.log.Logger()) })
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

// holding is the environment variable that makes the test program hold addresses until it is
// killed.
const holding = "CORACLE_TEST_HOLD_ADDRESSES"

func TestMain(m *testing.M) {
	if os.Getenv(holding) == "" {
		os.Exit(m.Run())
	}
	if _, err := Hold(context.Background(), held, nil, slog.Default()); err != nil {
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
