package network

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// report is an ICMPv6 message as pods send it to tell of groups: on Ethernet, with IPv6's router alert before it.
func report(body []byte) []byte {
	frame := []byte{0x33, 0x33, 0, 0, 0, 0x16, 0x0a, 0x58, 1, 2, 3, 4, 0x86, 0xdd}
	frame = append(frame, 0x60, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(8+len(body)))
	frame = append(frame, 0, 1) // a header for every hop follows; one hop
	frame = append(frame, netip.MustParseAddr("fe80::1").AsSlice()...)
	frame = append(frame, netip.MustParseAddr("ff02::16").AsSlice()...)
	frame = append(frame, unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0)
	return append(frame, body...)
}

func reportV1(typ byte, group string) []byte {
	return report(append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, netip.MustParseAddr(group).AsSlice()...))
}

func reportV2(groups ...string) []byte {
	body := []byte{mldReportV2, 0, 0, 0, 0, 0, 0, byte(len(groups))}
	for _, g := range groups {
		body = append(body, 4, 0, 0, 0)
		body = append(body, netip.MustParseAddr(g).AsSlice()...)
	}
	return report(body)
}

// packetSocket sends and receives IPv6 on a pod's link.
func packetSocket(t *testing.T, netNS string) (fd int) {
	t.Helper()
	must(t, within(t, netNS, func() (err error) {
		link, err := net.InterfaceByName(podIf)
		if err != nil {
			return err
		}
		proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto)); err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: link.Index})
	}))
	return fd
}

func send(t *testing.T, fd int, frame []byte) {
	t.Helper()
	if _, err := unix.Write(fd, frame); err != nil {
		t.Fatal(err)
	}
}

// receive waits for a frame, as long as it takes.
func receive(fd int) ([]byte, error) { return receiveWithin(fd, patience) }

func receiveWithin(fd int, wait time.Duration) ([]byte, error) {
	limit := unix.NsecToTimeval(wait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, err
	}
	buf := make([]byte, 2048)
	n, err := unix.Read(fd, buf)
	return buf[:max(n, 0)], err
}

// awaitForwarding sends from one pod to the other until something comes: the kernel lets a bridge's port forward a while after
// it has been made.
func awaitForwarding(t *testing.T, from, to int) {
	t.Helper()
	hello := report([]byte("hello"))
	for end := time.Now().Add(patience); time.Now().Before(end); {
		send(t, from, hello)
		if frame, err := receiveWithin(to, 50*time.Millisecond); err == nil && string(frame) == string(hello) {
			return
		}
	}
	t.Fatal("nothing comes over the bridge")
}

// Each pod's start told all other pods of its addresses' groups: with 500 pods a quarter of a start's work.
func TestPodsDoNotHearOfTheirNeighboursGroups(t *testing.T) {
	m := started(t, testConfig(t))
	a, b := packetSocket(t, connect(t, m, "a").NetNS), packetSocket(t, connect(t, m, "b").NetNS)
	awaitForwarding(t, a, b)
	const near, far = "ff02::1:ff00:2", "ff05::1234"
	kept := [][]byte{
		reportV1(mldReport, near), reportV1(mldDone, near),
		reportV2(near), reportV2(near, near), reportV2(near, near, near), reportV2(near, near, near, near),
	}
	// Somebody may route these, or they are not what the kernel sends.
	passed := [][]byte{
		reportV1(mldReport, far), reportV1(mldDone, far),
		reportV2(far), reportV2(near, far), reportV2(far, near), reportV2(near, near, near, far),
		reportV2(near, near, near, near, near), reportV1(130, near),
	}
	for _, f := range append(kept, passed...) {
		send(t, a, f)
	}
	for heard := map[string]bool{}; len(heard) < len(passed); {
		frame, err := receive(b)
		if err != nil {
			t.Fatalf("%v after %d of %d that must pass", err, len(heard), len(passed))
		}
		for i, f := range kept {
			if string(frame) == string(f) {
				t.Errorf("report %d of a group of this link went to a neighbour", i)
			}
		}
		for _, f := range passed {
			if string(frame) == string(f) {
				heard[string(f)] = true
			}
		}
	}
}

// A network of somebody else's may be one that goes by reports.
func TestReportsOnOtherBridgesPass(t *testing.T) {
	m := started(t, testConfig(t))
	p := connect(t, m, "a")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "other0"
	snooping := false // it would look at the checksums, too, and ours are none
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}))
	other, err := netlink.LinkByName(attrs.Name)
	must(t, err)
	defer func() { must(t, netlink.LinkDel(other)) }()
	must(t, netlink.LinkSetUp(other))
	link, err := netlink.LinkByName(vethName(p.ID))
	must(t, err)
	if got := link.Attrs().Group; got != linkGroup(m.bridge.name) {
		t.Errorf("a pod's link is in group %d", got)
	}
	var fds []int
	for _, name := range []string{"core0", "core1"} {
		netNS, _ := newNetNS(t)
		ns, err := openNetns(netNS)
		must(t, err)
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = name, other.Attrs().Index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: podIf, PeerNamespace: netlink.NsFd(ns.Fd())}
		must(t, netlink.LinkAdd(veth))
		defer func() { must(t, netlink.LinkDel(veth)) }()
		must(t, netlink.LinkSetUp(veth))
		must(t, within(t, netNS, func() error {
			eth, err := netlink.LinkByName(podIf)
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(eth)
		}))
		fds = append(fds, packetSocket(t, netNS))
	}
	awaitForwarding(t, fds[0], fds[1])
	want := reportV2("ff02::1:ff00:2")
	send(t, fds[0], want)
	for {
		frame, err := receive(fds[1])
		if err != nil {
			t.Fatalf("the report did not come: %v", err)
		}
		if string(frame) == string(want) {
			return
		}
	}
}

// A pod may ask for groups, and the bridge would believe that it knows all that somebody listens to: neighbours
// would not be found any more.
func TestBridgeDoesNotGoByReports(t *testing.T) {
	c := testConfig(t)
	snooping := true
	attrs := netlink.NewLinkAttrs()
	attrs.Name = c.withDefaults().BridgeName
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}))
	m := started(t, c)
	connect(t, m, "a")
	link, err := netlink.LinkByName(attrs.Name)
	must(t, err)
	if br, ok := link.(*netlink.Bridge); !ok || br.MulticastSnooping == nil || *br.MulticastSnooping {
		t.Errorf("bridge %+v", link)
	}
}
