//go:build nodes

package nodes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Links between nodes are spoilt at their ends on this machine. The kernel may lack netem: loss is
// by nftables, and delay by a process between the link and the bridge.

const bridge = "nodes6443"

// link is the name of the end of a node's link that is in the first node.
func (m *machine) link() string { return fmt.Sprintf("%s-%d", bridge, m.n) }

// lossy has a node's link lose so many percent of the packets in both directions, until heal is
// called.
func lossy(t *testing.T, m *machine, percent int) (heal func()) {
	t.Helper()
	table := fmt.Sprintf("spoil%d", m.n)
	drop := fmt.Sprintf("numgen random mod 100 < %d drop", percent)
	if percent == 100 {
		drop = "drop"
	}
	nft(t, fmt.Sprintf(`table netdev %s {
	chain from { type filter hook ingress device %q priority 0; %s; }
	chain to { type filter hook egress device %[2]q priority 0; %[3]s; }
}`, table, m.link(), drop))
	heal = sync.OnceFunc(func() { nft(t, "delete table netdev "+table) })
	t.Cleanup(heal)
	return heal
}

func nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft: %v: %s\n%s", err, said, rules)
	}
}

// delayed has each packet of a node's link take so much longer in each direction, until heal is
// called. Frames pass through this process, between the link and a tap device that takes its place
// on the bridge. Both ends say with each frame what the kernel has not computed yet (checksums).
func delayed(t *testing.T, m *machine, delay time.Duration) (heal func()) {
	t.Helper()
	near, err := netlink.LinkByName(m.link())
	if err != nil {
		t.Fatal(err)
	}
	tap, packets := openTap(t, fmt.Sprintf("delay%d", m.n)), openPackets(t, near)
	for name, on := range map[string]bool{m.link(): false, fmt.Sprintf("delay%d", m.n): true} {
		connect(t, name, on)
	}
	var relays sync.WaitGroup
	relays.Go(func() { relay(packets, tap, delay) })
	relays.Go(func() { relay(tap, packets, delay) })
	heal = sync.OnceFunc(func() {
		connect(t, m.link(), true)
		_, _ = tap.Close(), packets.Close()
		relays.Wait()
	})
	t.Cleanup(heal)
	return heal
}

func connect(t *testing.T, name string, on bool) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err = netlink.LinkSetNoMaster(l); on {
		var b netlink.Link
		if b, err = netlink.LinkByName(bridge); err == nil {
			err = netlink.LinkSetMaster(l, b)
		}
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatalf("link %s: %v", name, err)
	}
}

// openTap makes a tap device. Frames have a header (virtio_net_hdr).
func openTap(t *testing.T, name string) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
	}
	if err != nil {
		t.Fatalf("tap %s: %v", name, err)
	}
	return os.NewFile(uintptr(fd), name)
}

// openPackets opens a socket that gets and sends all frames of a link, with the same header.
func openPackets(t *testing.T, l netlink.Link) *os.File {
	t.Helper()
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
		}
	}
	if err == nil {
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(l.Attrs().Index), Type: unix.PACKET_MR_PROMISC})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	}
	if err != nil {
		t.Fatalf("packets of %s: %v", l.Attrs().Name, err)
	}
	return os.NewFile(uintptr(fd), l.Attrs().Name)
}

// relay passes frames on, in their order, delay after they came, until either end is closed.
func relay(from, to *os.File, delay time.Duration) {
	type frame struct {
		due  time.Time
		data []byte
	}
	frames := make(chan frame, 4096)
	var sender sync.WaitGroup
	sender.Go(func() {
		for f := range frames {
			<-time.After(time.Until(f.due))
			_, _ = to.Write(f.data) // a frame may be lost
		}
	})
	buf := make([]byte, 1<<17)
	for {
		n, err := from.Read(buf)
		if err != nil {
			break
		}
		select {
		case frames <- frame{time.Now().Add(delay), bytes.Clone(buf[:n])}:
		default: // as a full queue of a link would
		}
	}
	close(frames)
	sender.Wait()
}
