package wireguard

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

const testPort = 51871

// end is a node: a namespace with the first addresses of its pods' ranges.
type end struct {
	*testnet.Space
	underlay map[string]netip.Addr
	ranges   []netip.Prefix
	private  Key
	kernel   *Kernel
	device   int
}

func newEnd(t *testing.T, number int) *end {
	e := &end{
		Space: testnet.NewSpace(t, fmt.Sprintf("end%d", number)),
		underlay: map[string]netip.Addr{
			"IPv4": netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", number)), "IPv6": netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", number)),
		},
		ranges: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", number)),
		},
	}
	var err error
	if e.private, err = Private(filepath.Join(t.TempDir(), "key")); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"tcp", "udp"} {
		e.Serve(network, 80)
	}
	return e
}

// pod is the address of a pod, by the index of its range.
func (e *end) pod(i int) netip.Addr { return e.ranges[i].Addr().Next() }

// open makes the device.
func (e *end) open(t *testing.T) {
	t.Helper()
	e.Within(func() {
		var err error
		if e.kernel, err = Open(); err == nil {
			e.device, err = e.kernel.Add("wire", 1420)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(e.kernel.Close)
	e.Run("ip link set wire up")
}

// set has the device know a peer, or none.
func (e *end) set(t *testing.T, peers ...Peer) {
	t.Helper()
	if err := e.kernel.Set(e.device, Device{Private: e.private, Port: testPort, Peers: peers}); err != nil {
		t.Fatal(err)
	}
}

func (e *end) asPeer(t *testing.T, underlay string) Peer {
	t.Helper()
	public, err := e.private.Public()
	if err != nil {
		t.Fatal(err)
	}
	return Peer{Key: public, Endpoint: netip.AddrPortFrom(e.underlay[underlay], testPort), Ranges: e.ranges}
}

// missing reports whether this kernel has no WireGuard, and checks that this is the reason given.
func missing(t *testing.T) bool {
	t.Helper()
	k, err := Open()
	if err == nil {
		k.Close()
		return false
	}
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "CONFIG_WIREGUARD") {
		t.Fatalf("a kernel without WireGuard: %v", err)
	}
	return true
}

// Packets between ranges of pods are on the wire only encrypted. Without the tunnel, the same look
// at the wire sees them.
func TestPacketsAreEncrypted(t *testing.T) {
	if missing(t) {
		testnet.Untested(t, "WireGuard between two nodes")
		return
	}
	a, b := newEnd(t, 1), newEnd(t, 2)
	testnet.Wire(a.Space, "eth0", b.Space, "eth0")
	for _, e := range []*end{a, b} {
		e.Run("ip link set lo up")
		e.Run("ip addr add " + e.underlay["IPv4"].String() + "/24 dev eth0")
		e.Run("ip addr add " + e.underlay["IPv6"].String() + "/64 dev eth0 nodad")
		e.Run("ip addr add " + e.pod(0).String() + "/32 dev lo")
		e.Run("ip addr add " + e.pod(1).String() + "/128 dev lo nodad")
	}
	route := func(e, far *end, by func(i int) string) {
		for i, r := range far.ranges {
			e.Run(fmt.Sprintf("ip route replace %s %s src %s", r, by(i), e.pod(i)))
		}
	}
	plain := func(far *end) func(int) string {
		return func(i int) string { return "via " + far.underlay[[]string{"IPv4", "IPv6"}[i]].String() }
	}
	route(a, b, plain(b))
	route(b, a, plain(a))
	wire := listen(t, b)
	a.asks(t, b)
	if seen := wire.read(t); !seen.text {
		t.Fatalf("without encryption, the wire shows nothing of what is asked: the look at it proves nothing: %+v", seen)
	}

	for _, e := range []*end{a, b} {
		e.open(t)
	}
	wired := func(int) string { return "dev wire" }
	route(a, b, wired)
	route(b, a, wired)
	for _, underlay := range []string{"IPv4", "IPv6"} {
		a.set(t, b.asPeer(t, underlay))
		b.set(t, a.asPeer(t, underlay))
		_ = wire.read(t)
		a.asks(t, b)
		if seen := wire.read(t); seen.text || seen.plain > 0 || seen.encrypted == 0 {
			t.Errorf("by %s: %+v", underlay, seen)
		}
	}

	b.set(t)
	if keys, err := b.kernel.keys(b.device); err != nil || len(keys) > 0 {
		t.Errorf("after all peers were removed: %v, %v", keys, err)
	}
}

// asks has e ask b's pods from its own, in both families.
func (e *end) asks(t *testing.T, far *end) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for i := range far.ranges {
			answer, err := e.Ask(network, netip.AddrPortFrom(far.pod(i), 80).String())
			if want := far.Name + " " + e.pod(i).String(); err != nil || answer != want {
				t.Errorf("%s to %s: %q, %v; want %q", network, far.pod(i), answer, err, want)
			}
		}
	}
}

// A list of peers is longer than a message.
func TestManyPeers(t *testing.T) {
	if missing(t) {
		testnet.Untested(t, "many peers of WireGuard")
		return
	}
	e := newEnd(t, 1)
	e.open(t)
	var peers []Peer
	for i := range 3*atOnce + 1 {
		var p Peer
		binary.BigEndian.PutUint16(p.Key[:], uint16(i+1))
		p.Endpoint = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(2 + i>>8), byte(i)}), testPort)
		p.Ranges = []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 6: byte(i >> 8), 7: byte(i)}), 64),
		}
		peers = append(peers, p)
	}
	check := func(peers []Peer) {
		t.Helper()
		var want []string
		for _, p := range peers {
			want = append(want, p.Key.String())
		}
		e.set(t, peers...)
		keys, err := e.kernel.keys(e.device)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range keys {
			if text := k.String(); !slices.Contains(got, text) {
				got = append(got, text)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%d peers, want %d", len(got), len(want))
		}
	}
	check(peers)
	check(peers[:1])
	check(nil)
}

// wire is a look at all frames of a link.
type wire int

// seen is what a link had.
type seen struct {
	text             bool // the answer of a server, in plain
	plain, encrypted int  // frames of pods' addresses, and of the tunnel's port
}

func listen(t *testing.T, e *end) wire {
	t.Helper()
	fd := -1
	e.Within(func() {
		var err error
		all := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL)))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = unix.Close(fd) })
	return wire(fd)
}

// read returns what there was since the last call on links with an Ethernet header. The tunnel's
// device has none.
func (w wire) read(t *testing.T) (s seen) {
	t.Helper()
	frame := make([]byte, 1<<16)
	for {
		n, from, err := unix.Recvfrom(int(w), frame, 0)
		if errors.Is(err, unix.EAGAIN) {
			return s
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := from.(*unix.SockaddrLinklayer); !ok || at.Hatype != unix.ARPHRD_ETHER {
			continue
		}
		data := frame[:n]
		s.text = s.text || bytes.Contains(data, []byte("end2 10.244.1.1")) || bytes.Contains(data, []byte("end2 fd00:244:1::1"))
		source, port := header(data)
		switch {
		case slices.ContainsFunc(podNetworks, func(p netip.Prefix) bool { return p.Contains(source) }):
			s.plain++
		case port == testPort:
			s.encrypted++
		}
	}
}

var podNetworks = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")}

// header returns the source of a packet in an Ethernet frame, and the source port if it is UDP.
func header(frame []byte) (source netip.Addr, port uint16) {
	const ipv4, ipv6, at = 0x0800, 0x86dd, 14
	protocol, next := byte(0), at
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == ipv4 && len(frame) >= at+20:
		source, protocol, next = netip.AddrFrom4([4]byte(frame[at+12:at+16])), frame[at+9], at+20
	case kind == ipv6 && len(frame) >= at+40:
		source, protocol, next = netip.AddrFrom16([16]byte(frame[at+8:at+24])), frame[at+6], at+40
	}
	if protocol == unix.IPPROTO_UDP && len(frame) >= next+8 {
		port = binary.BigEndian.Uint16(frame[next:])
	}
	return source, port
}

func TestPrivateKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "key")
	first, err := Private(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if again, err := Private(file); err != nil || again != first {
		t.Errorf("read again: %v", err)
	}
	if other, err := Private(filepath.Join(dir, "other")); err != nil || other == first {
		t.Errorf("another key: %v", err)
	}
	public, err := first.Public()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParsePublic(public.String()); err != nil || got != public {
		t.Errorf("its public key: %v, %v", got, err)
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Private(file); err == nil || !strings.Contains(err.Error(), "mode 0640") {
		t.Errorf("a key that others can read: %v", err)
	}
	for _, data := range [][]byte{nil, make([]byte, 31), make([]byte, 33), make([]byte, 1<<20)} {
		damaged := filepath.Join(dir, "damaged")
		if err := os.WriteFile(damaged, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Private(damaged); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("a key of %d bytes: %v", len(data), err)
		}
	}
}

func TestRefusePublicKeys(t *testing.T) {
	encode := base64.StdEncoding.EncodeToString
	one := append([]byte{1}, make([]byte, 31)...)
	for name, text := range map[string]string{
		"empty": "", "text": "garbage", "long": strings.Repeat("A", 1<<20), "no base64": strings.Repeat("!", 44),
		"another alphabet": strings.Repeat("_", 43) + "=", "lines": strings.Repeat("A", 20) + "\n" + strings.Repeat("A", 22) + "=",
		"short": encode(make([]byte, 31)), "padding that is no zero": strings.Repeat("A", 42) + "B=",
		"zero": encode(make([]byte, 32)), "of low order": encode(one),
	} {
		if k, err := ParsePublic(text); err == nil || len(err.Error()) > 200 {
			t.Errorf("%s: %v, %.300v", name, k, err)
		}
	}
}
