package rules

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nftable"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// packet is the first of a connection, unless flags say otherwise.
type packet struct {
	from                *testnet.Space
	protocol            byte
	source, destination netip.Addr
	port                uint16
	flags               byte // of TCP; 0: SYN
	tos                 byte
}

func (p packet) connection() Connection {
	c := Connection{Protocol: p.protocol, Source: netip.AddrPortFrom(p.source, 0), Destination: netip.AddrPortFrom(p.destination, p.port)}
	if p.protocol == unix.IPPROTO_ICMP || p.protocol == unix.IPPROTO_ICMPV6 {
		c.Destination = netip.AddrPortFrom(p.destination, 0)
	}
	return c
}

func (p packet) String() string {
	return fmt.Sprintf("protocol %d from %s to %s port %d flags %#x", p.protocol, p.source, p.destination, p.port, p.flags)
}

// bytes is the packet with its IP header. The id tells it from others: its source port, or the id
// of an echo request.
func (p packet) bytes(id uint16) []byte {
	var b []byte
	sumAt := 0
	two := binary.BigEndian.AppendUint16
	switch p.protocol {
	case unix.IPPROTO_TCP: // RFC 9293, section 3.1
		flags := p.flags
		if flags == 0 {
			flags = 0x02
		}
		b = two(two(nil, id), p.port)
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, flags, 255, 255, 0, 0, 0, 0)
		sumAt = 16
	case unix.IPPROTO_UDP:
		b = append(two(two(nil, id), p.port), 0, 9, 0, 0, 'x')
		sumAt = 6
	case unix.IPPROTO_SCTP: // an INIT chunk (RFC 9260, section 3.3.2)
		b = append(two(two(nil, id), p.port), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6: // an echo request
		b = append(two([]byte{8, 0, 0, 0}, id), 0, 1)
		sumAt = 2
		if p.protocol == unix.IPPROTO_ICMPV6 {
			b[0] = 128
		}
	}
	if sumAt != 0 {
		var pseudo []byte
		if p.protocol != unix.IPPROTO_ICMP {
			pseudo = append(p.source.AsSlice(), p.destination.AsSlice()...)
			pseudo = append(two(pseudo, uint16(len(b))), 0, p.protocol)
		}
		binary.BigEndian.PutUint16(b[sumAt:], checksum(append(pseudo, b...)))
	}
	if p.source.Is4() {
		h := append([]byte{0x45, p.tos}, make([]byte, 18)...)
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(b)))
		h[8], h[9] = 64, p.protocol
		copy(h[12:], p.source.AsSlice())
		copy(h[16:], p.destination.AsSlice())
		return append(h, b...)
	}
	h := append([]byte{0x60 | p.tos>>4, p.tos << 4, 0, 0}, 0, byte(len(b)), p.protocol, 64)
	h = append(append(h, p.source.AsSlice()...), p.destination.AsSlice()...)
	return append(h, b...)
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * uint(1-i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// observer sees which packets the node forwards, and which of them the rules let pass.
type observer struct {
	t     testing.TB // of the whole node
	conn  *nftables.Conn
	sends map[*testnet.Space][2]int // raw sockets, by family
	next  uint16                    // id
}

// The sets hold the ids of packets.
const observerTable = `table inet observer {
	set seen { type inet_service; flags dynamic; size 65535; }
	set passed { type inet_service; flags dynamic; size 65535; }
	set seen_icmp { typeof icmp id; flags dynamic; size 65535; }
	set passed_icmp { typeof icmp id; flags dynamic; size 65535; }
	chain before { type filter hook forward priority -10;
		meta l4proto { tcp, udp, sctp } add @seen { th sport }
		icmp type echo-request add @seen_icmp { icmp id }
		icmpv6 type echo-request add @seen_icmp { icmpv6 id }
	}
	chain after { type filter hook forward priority 10;
		meta l4proto { tcp, udp, sctp } add @passed { th sport }
		icmp type echo-request add @passed_icmp { icmp id }
		icmpv6 type echo-request add @passed_icmp { icmpv6 id }
	}
}`

func newObserver(t testing.TB, n *testnet.Node) *observer {
	o := &observer{t: t, sends: map[*testnet.Space][2]int{}, next: 20000}
	load(t, n, observerTable)
	n.Within(func() {
		var err error
		if o.conn, err = nftables.New(nftables.AsLasting()); err != nil {
			o.t.Error(err)
		}
	})
	o.t.Cleanup(func() { _ = o.conn.CloseLasting() })
	return o
}

// load adds rules in nft's language.
func load(t testing.TB, n *testnet.Node, text string) {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	n.Within(func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("nft: %v: %s", err, out)
		}
	})
}

func (o *observer) sockets(s *testnet.Space) [2]int {
	if fds, open := o.sends[s]; open {
		return fds
	}
	var fds [2]int
	s.Within(func() {
		for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
			fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err == nil && family == unix.AF_INET6 {
				err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL, 1)
			}
			if err != nil {
				o.t.Error(err)
				return
			}
			o.t.Cleanup(func() { _ = unix.Close(fd) })
			fds[i] = fd
		}
	})
	o.sends[s] = fds
	return fds
}

// verdicts sends packets and reports which of them pass.
func (o *observer) verdicts(t testing.TB, packets []packet) []bool {
	t.Helper()
	for _, p := range packets {
		o.sockets(p.from)
	}
	first := o.next
	o.next += uint16(len(packets))
	if o.next < first {
		t.Fatal("more packets than ids")
	}
	passed := make([]bool, len(packets))
	done := make(chan error)
	go func() { done <- o.exchange(packets, first, passed) }()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return passed
}

// exchange stays on one CPU, which then forwards the packets as well: it does that with one
// completely before the thread runs again, so that what is seen has also been decided.
func (o *observer) exchange(packets []packet, first uint16, passed []bool) error {
	runtime.LockOSThread() // never unlocked: the thread is not used again
	var one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &one); err != nil {
		return err
	}
	for cpu := range 1024 {
		if one.IsSet(cpu) {
			one.Zero()
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	for i, p := range packets {
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: p.destination.As16()}
		if p.destination.Is4() {
			to = &unix.SockaddrInet4{Addr: p.destination.As4()}
		}
		if err := unix.Sendto(o.sends[p.from][familyOf(p.destination).Index], p.bytes(first+uint16(i)), 0, to); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	for deadline := time.Now().Add(testnet.Patience); ; {
		seen, err := o.ids("seen")
		if err != nil {
			return err
		}
		missing := -1
		for i, p := range packets {
			if !seen[p.key(first+uint16(i))] {
				missing = i
			}
		}
		if missing < 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the node does not forward %s", packets[missing])
		}
	}
	all, err := o.ids("passed")
	for i, p := range packets {
		passed[i] = all[p.key(first+uint16(i))]
	}
	return err
}

// key of a packet among the ids.
func (p packet) key(id uint16) string {
	kind := ""
	if p.protocol == unix.IPPROTO_ICMP || p.protocol == unix.IPPROTO_ICMPV6 {
		kind = "_icmp"
	}
	return kind + nftable.Field16(id)[:2]
}

func (o *observer) ids(set string) (map[string]bool, error) {
	ids := map[string]bool{}
	table := &nftables.Table{Name: "observer", Family: nftables.TableFamilyINet}
	for _, kind := range []string{"", "_icmp"} {
		elements, err := o.conn.GetSetElements(&nftables.Set{Table: table, Name: set + kind})
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", set+kind, err)
		}
		for _, e := range elements {
			ids[kind+string(e.Key[:2])] = true
		}
	}
	return ids, nil
}
