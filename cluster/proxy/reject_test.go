package proxy

import (
	"bufio"
	"encoding/binary"
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

const table = "coracle-services-test"

// machine is a network namespace with a default route to "out" and a pod's link "pod0", whose other end is "pod1".
type machine struct{ t *testing.T }

// within runs f on such a machine.
func within(t *testing.T, f func(m machine)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("it must be root: %v", err)
			return
		}
		m := machine{t}
		m.ip("link set lo up")
		m.ip("link add out type veth peer name beyond") // it must not answer
		m.ip("link set beyond up")
		m.ip("addr add 192.0.2.1/24 dev out")
		m.ip("addr add 2001:db8::1/64 dev out nodad")
		m.ip("link set out up")
		m.ip("neigh add 192.0.2.254 lladdr 02:00:00:00:00:01 dev out")
		m.ip("neigh add 2001:db8::254 lladdr 02:00:00:00:00:01 dev out")
		m.ip("route add default via 192.0.2.254")
		m.ip("route add default via 2001:db8::254")
		m.ip("link add pod0 address 02:00:00:00:00:02 type veth peer name pod1")
		m.ip("link set pod0 up")
		m.ip("link set pod1 up")
		m.ip("route add 10.85.0.0/24 dev pod0")
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
			t.Error(err)
		}
		if !t.Failed() {
			f(m)
		}
	}()
	<-done
}

func (m machine) ip(args string) {
	m.t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		m.t.Errorf("ip %s: %v: %s", args, err, out)
	}
}

// leaves has send send a datagram to address, and then to one that no rule is about, and reports whether the
// first has left the machine when the second does.
func (m machine) leaves(address string, send func(string)) bool {
	m.t.Helper()
	wanted, marker := netip.MustParseAddr(address), netip.MustParseAddr("198.51.100.1")
	protocol, offset := unix.ETH_P_IP, 16
	if wanted.Is6() {
		marker, protocol, offset = netip.MustParseAddr("2001:db8:1::1"), unix.ETH_P_IPV6, 24
	}
	link, err := net.InterfaceByName("beyond")
	if err != nil {
		m.t.Error(err)
		return false
	}
	order := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, uint16(protocol))))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		m.t.Error(err)
		return false
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(order), Ifindex: link.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})); err != nil {
		m.t.Error(err)
		return false
	}
	send(address)
	send(marker.String())
	packet, found := make([]byte, 2048), false
	for {
		n, _, err := unix.Recvfrom(fd, packet, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			m.t.Errorf("nothing leaves the machine: %v", err)
			return false
		}
		if size := marker.BitLen() / 8; n >= offset+size {
			to, _ := netip.AddrFromSlice(packet[offset : offset+size])
			if to == marker {
				return found
			}
			found = found || to == wanted
		}
	}
}

// sent reports whether what the machine itself sends to address leaves it.
func (m machine) sent(address string) bool {
	m.t.Helper()
	return m.leaves(address, func(address string) {
		conn, err := net.Dial("udp", net.JoinHostPort(address, "9"))
		if err != nil {
			m.t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("x")) // a rejection may be its error
	})
}

// forwarded reports whether what a pod sends to address leaves the machine.
func (m machine) forwarded(address string) bool {
	m.t.Helper()
	return m.leaves(address, m.inject)
}

// inject sends a datagram in the name of a pod.
func (m machine) inject(address string) {
	m.t.Helper()
	link, err := net.InterfaceByName("pod1")
	if err != nil {
		m.t.Error(err)
		return
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		m.t.Error(err)
		return
	}
	defer unix.Close(fd)
	to := netip.MustParseAddr(address).As4()
	frame := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3, 8, 0}, // Ethernet
		0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 85, 0, 2, to[0], to[1], to[2], to[3], // IPv4
		0, 9, 0, 9, 0, 8, 0, 0) // UDP
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(frame[i:]))
	}
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum+sum>>16))
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6}); err != nil {
		m.t.Error(err)
	}
}

// tables returns the names of the machine's tables.
func (m machine) tables() []string {
	m.t.Helper()
	conn, err := nftables.New()
	if err != nil {
		m.t.Error(err)
		return nil
	}
	tables, err := conn.ListTables()
	if err != nil {
		m.t.Error(err)
	}
	var names []string
	for _, t := range tables {
		names = append(names, t.Name)
	}
	return names
}

// unowned adds a table that outlives its connection.
func (m machine) unowned() {
	m.t.Helper()
	conn, err := nftables.New()
	if err != nil {
		m.t.Error(err)
		return
	}
	conn.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
	if err := conn.Flush(); err != nil {
		m.t.Error(err)
	}
	if !slices.Contains(m.tables(), table) {
		m.t.Error("a table without an owner is gone: the test shows nothing")
	}
}

// holder is the environment variable that makes the test program hold rules until it is killed.
const holder = "CORACLE_TEST_HOLD_RULES"

func TestMain(m *testing.M) {
	if os.Getenv(holder) == "" {
		os.Exit(m.Run())
	}
	if _, err := Reject(table, netip.MustParsePrefix("10.96.0.0/16")); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("rejecting")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed, or the test ends
	os.Exit(0)
}

func TestNothingIsLeftOfAKilledProcess(t *testing.T) {
	within(t, func(m machine) {
		self, err := os.Executable()
		if err != nil {
			t.Error(err)
			return
		}
		process := exec.Command(self)
		process.Env = append(os.Environ(), holder+"=1")
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
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if line != "rejecting\n" {
			t.Errorf("%q, %v", line, err)
		}
		if got := m.tables(); !slices.Equal(got, []string{table}) || m.sent("10.96.7.7") {
			t.Errorf("nothing is rejected while the process runs: tables %v", got)
		}
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed
		if got := process.ProcessState.String(); got != "signal: killed" {
			t.Error(got)
		}
		if got := m.tables(); len(got) > 0 || !m.sent("10.96.7.7") {
			t.Errorf("tables %v are left", got)
		}
	})
}

func TestAddressesOfServicesAreRejected(t *testing.T) {
	within(t, func(m machine) {
		sent, forwarded, sent6 := m.sent("10.96.7.7"), m.forwarded("10.96.7.7"), m.sent("fd00:96::7")
		if !sent || !forwarded || !sent6 {
			t.Errorf("packets to Services do not leave the machine anyway (%v, %v, %v): the test shows nothing", sent, forwarded, sent6)
			return
		}
		m.unowned() // is replaced
		rules, err := Reject(table, netip.MustParsePrefix("10.96.0.0/16"))
		if err != nil {
			t.Error(err)
			return
		}
		if m.sent("10.96.7.7") || m.forwarded("10.96.7.7") {
			t.Error("a packet to a Service left the machine")
		}
		conn, err := net.DialTimeout("tcp", "10.96.7.7:80", time.Minute)
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a connection to a Service: %v, %v", conn, err)
		}
		if !m.sent("10.97.0.1") || !m.sent("10.95.255.255") || !m.forwarded("10.97.0.1") {
			t.Error("other addresses are rejected, too")
		}
		// An address that the node has itself, as some proxies give it.
		m.ip("addr add 10.96.9.9/32 dev out")
		listener, err := net.Listen("tcp", "10.96.9.9:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer listener.Close()
		own, err := net.DialTimeout("tcp", listener.Addr().String(), time.Minute)
		if err != nil {
			t.Errorf("an address of the node's own: %v", err)
			return
		}
		_ = own.Close()
		if other, err := Reject(table, netip.MustParsePrefix("fd00:96::/112")); !errors.Is(err, unix.EPERM) {
			t.Errorf("the table of a running process was replaced: %v, %v", other, err)
		}
		if err := rules.Close(); err != nil {
			t.Error(err)
		}
		if rules, err = Reject(table, netip.MustParsePrefix("fd00:96::/112")); err != nil {
			t.Error(err)
			return
		}
		if m.sent("fd00:96::7") || !m.sent("fd00:97::7") {
			t.Error("a packet to a Service left the machine, or one to another address did not")
		}
		if err := rules.Close(); err != nil {
			t.Error(err)
		}
		if !m.sent("fd00:96::7") || len(m.tables()) > 0 {
			t.Error("the rules outlive their removal")
		}
	})
}
