package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// changes follows the kernel's messages (rtnetlink(7)) about links of pods, default routes and
// routes to other nodes' pods. A pod's link goes with its namespace, and the kernel reports it
// (RTM_DELLINK) when nothing of it is left.
type changes struct {
	log    *slog.Logger
	onGone func(podID string)
	// onUplinks is called when the host has got or lost a default route, onPeers when routes to other
	// nodes' pods changed, once for several that follow each other.
	onUplinks, onPeers func()

	mu     sync.Mutex
	pods   map[string]string // by link
	socket *os.File          // nil until start
	peers  chan struct{}
	closed bool
	wg     sync.WaitGroup
}

func newChanges(log *slog.Logger, onGone func(podID string), onUplinks, onPeers func()) *changes {
	return &changes{
		log: log, onGone: onGone, onUplinks: onUplinks, onPeers: onPeers, pods: map[string]string{}, peers: make(chan struct{}, 1),
	}
}

// start starts to listen, unless it has started.
func (d *changes) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.socket != nil {
		return
	}
	s, err := listenForChanges()
	if err != nil {
		d.log.Warn("cannot follow changes of links and routes; links are deleted one by one", "err", err)
		return
	}
	d.socket = s
	stopped := make(chan struct{})
	d.wg.Go(func() {
		defer close(stopped)
		d.listen(s)
	})
	d.wg.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-d.peers:
				d.onPeers()
			}
		}
	})
}

// expect has onGone called with podID when the link is gone. It returns false if the link is gone
// already, or cannot be watched.
func (d *changes) expect(link, podID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.socket == nil || !linkExists(link) {
		return false
	}
	d.pods[link] = podID
	return true
}

func (d *changes) close() {
	d.mu.Lock()
	d.closed = true
	if d.socket != nil {
		d.socket.Close()
	}
	clear(d.pods)
	d.mu.Unlock()
	d.wg.Wait()
}

// listenForChanges opens a socket that gets the messages about links that are gone, default routes
// and routes to other nodes' pods, and no others.
func listenForChanges() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s := os.NewFile(uintptr(fd), "netlink")
	const (
		typeAt     = 4                       // nlmsg_type
		dstLenAt   = unix.SizeofNlMsghdr + 1 // rtm_dst_len
		protocolAt = unix.SizeofNlMsghdr + 5 // rtm_protocol
	)
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: typeAt, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded(unix.RTM_DELLINK), SkipTrue: 6},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded(unix.RTM_NEWROUTE), SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded(unix.RTM_DELROUTE), SkipFalse: 5},
		bpf.LoadAbsolute{Off: dstLenAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 2},
		bpf.LoadAbsolute{Off: protocolAt, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: peerRoutes, SkipFalse: 1},
		bpf.RetConstant{Val: 0xffffffff},
		bpf.RetConstant{Val: 0},
	})
	if err == nil {
		err = attach(fd, filter)
	}
	if err == nil {
		var groups uint32
		for _, g := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE} {
			groups |= 1 << (g - 1)
		}
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("listen for changes of links and routes: %w", err)
	}
	return s, nil
}

// asLoaded is a type of message as a filter loads it, in network byte order.
func asLoaded(typ uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, typ)))
}

func attach(fd int, filter []bpf.RawInstruction) error {
	var raw []unix.SockFilter
	for _, i := range filter {
		raw = append(raw, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]})
}

func (d *changes) listen(s *os.File) {
	buf := make([]byte, 1<<16)
	for {
		n, err := s.Read(buf)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, unix.ENOBUFS): // some were lost
			d.rescan()
		case err != nil:
			d.log.Error("cannot follow changes of links and routes any more", "err", err)
			d.mu.Lock()
			d.socket = nil
			d.mu.Unlock()
			s.Close()
			d.rescan()
			return
		default:
			d.read(buf[:n])
		}
	}
}

func (d *changes) read(data []byte) {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		d.rescan()
		return
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_DELLINK:
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			if len(m.Data) > 5 && m.Data[5] == peerRoutes { // rtm_protocol
				d.peersChanged()
			} else {
				d.onUplinks()
			}
			continue
		default:
			continue
		}
		if len(m.Data) < unix.SizeofIfInfomsg { // the parser does not check
			d.rescan()
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			d.rescan()
			continue
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_IFNAME {
				d.gone(unix.ByteSliceToString(a.Value))
			}
		}
	}
}

// rescan asks for what messages may have said.
func (d *changes) rescan() {
	d.onUplinks()
	d.peersChanged()
	d.mu.Lock()
	var gone []string
	for link := range d.pods {
		if !linkExists(link) {
			gone = append(gone, link)
		}
	}
	d.mu.Unlock()
	for _, link := range gone {
		d.gone(link)
	}
}

func (d *changes) peersChanged() {
	select {
	case d.peers <- struct{}{}:
	default: // one that is to come sees this change, too
	}
}

func (d *changes) gone(link string) {
	d.mu.Lock()
	podID, ok := d.pods[link]
	delete(d.pods, link)
	d.mu.Unlock()
	if ok {
		d.onGone(podID)
	}
}

// linkExists reports whether the host has a link, as far as can be told. It does not wait for the
// kernel's lock on network configuration, as a netlink request would.
func linkExists(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return true
	}
	return !errors.Is(unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr), unix.ENODEV)
}
