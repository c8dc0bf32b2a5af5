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

// departures tells when links of the host have gone. A pod's link goes with its namespace, and the kernel reports that
// (RTM_DELLINK, rtnetlink(7)) when nothing of it is left.
type departures struct {
	log  *slog.Logger
	tell func(podID string)

	mu     sync.Mutex
	pods   map[string]string // by link
	socket *os.File          // nil until the first pod
	closed bool
	wg     sync.WaitGroup
}

func newDepartures(log *slog.Logger, tell func(podID string)) *departures {
	return &departures{log: log, tell: tell, pods: map[string]string{}}
}

// expect has the pod told when the link is gone. It reports false if it cannot be told, or is gone already.
func (d *departures) expect(link, podID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	if d.socket == nil {
		s, err := listenForDepartures()
		if err != nil {
			d.log.Warn("cannot learn when links go; deleting them one by one", "err", err)
			return false
		}
		d.socket = s
		d.wg.Go(func() { d.listen(s) })
	}
	if !linkExists(link) {
		return false
	}
	d.pods[link] = podID
	return true
}

func (d *departures) close() {
	d.mu.Lock()
	d.closed = true
	if d.socket != nil {
		d.socket.Close()
	}
	clear(d.pods)
	d.mu.Unlock()
	d.wg.Wait()
}

// listenForDepartures opens a socket that gets the kernel's messages about links that have gone, and no others.
func listenForDepartures() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	s := os.NewFile(uintptr(fd), "netlink")
	var delLink [2]byte
	binary.NativeEndian.PutUint16(delLink[:], unix.RTM_DELLINK)
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // nlmsg_type, in network byte order
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(binary.BigEndian.Uint16(delLink[:])), SkipFalse: 1},
		bpf.RetConstant{Val: 0xffffffff},
		bpf.RetConstant{Val: 0},
	})
	if err == nil {
		err = attach(fd, filter)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)})
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("listen for links that go: %w", err)
	}
	return s, nil
}

func attach(fd int, filter []bpf.RawInstruction) error {
	var raw []unix.SockFilter
	for _, i := range filter {
		raw = append(raw, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]})
}

func (d *departures) listen(s *os.File) {
	buf := make([]byte, 1<<16)
	for {
		n, err := s.Read(buf)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, unix.ENOBUFS): // some were lost
			d.look()
		case err != nil:
			d.log.Error("cannot learn when links go", "err", err)
			d.look()
			return
		default:
			d.read(buf[:n])
		}
	}
}

func (d *departures) read(data []byte) {
	messages, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		d.look()
		return
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_DELLINK {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			d.look()
			continue
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_IFNAME {
				d.gone(unix.ByteSliceToString(a.Value))
			}
		}
	}
}

// look asks for each link.
func (d *departures) look() {
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

func (d *departures) gone(link string) {
	d.mu.Lock()
	podID, ok := d.pods[link]
	delete(d.pods, link)
	d.mu.Unlock()
	if ok {
		d.tell(podID)
	}
}

// linkExists reports whether the host has a link, as far as can be told. It does not wait for the kernel's lock on network
// configuration, as a netlink request would.
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
