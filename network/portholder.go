package network

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network/firewall"
)

// holds keeps the host ports of pods bound on the host, as a program would that listens there. Host
// ports are translated before a packet looks for a socket, and that includes what the node's own
// processes send to themselves. So a pod must not get the port of a process, and no process may
// listen on a pod's port later: either would lose its traffic to the pod without noticing.
//
// The sockets are bound to what the nftables maps match: the mapping's address, or all of them.
// They never listen. The kernel closes them with the daemon; the next one binds them again
// (rehold).
type holds struct {
	log *slog.Logger

	mu    sync.Mutex
	byPod map[string]map[hostPort][]int // sockets
}

func newHolds(log *slog.Logger) *holds {
	return &holds{log: log, byPod: map[string]map[hostPort][]int{}}
}

// take binds a port of the pod for the families of its addresses, unless it already has. The port
// is held if no program of the node can listen there from now on. ErrPortInUse names the address
// where a process of the node listens; then nothing is bound. The caller holds the pod.
func (h *holds) take(podID string, ips []netip.Addr, p hostPort) (held bool, err error) {
	addrs := p.matches(ips)
	h.mu.Lock()
	sockets, ours := h.byPod[podID][p]
	h.mu.Unlock()
	if ours { // a second socket would meet the first, which looks like that of any process
		return len(sockets) >= len(addrs), nil // the pod may have fewer addresses than were reserved for it
	}
	for _, ip := range addrs {
		bound, err := h.bind(p, ip)
		if err != nil {
			closeAll(sockets)
			return false, err
		}
		sockets = append(sockets, bound...)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byPod[podID] == nil {
		h.byPod[podID] = map[hostPort][]int{}
	}
	h.byPod[podID][p] = sockets
	return len(sockets) == len(addrs), nil
}

// release lets programs of the node have a pod's ports.
func (h *holds) release(podID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, sockets := range h.byPod[podID] {
		closeAll(sockets)
	}
	delete(h.byPod, podID)
}

func (h *holds) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ports := range h.byPod {
		for _, sockets := range ports {
			closeAll(sockets)
		}
	}
	clear(h.byPod)
}

func closeAll(sockets []int) {
	for _, s := range sockets {
		_ = unix.Close(s)
	}
}

// listenerFree fails if a process of the node listens on one of the ports. The pod has no addresses
// yet: they may be of both families.
func listenerFree(log *slog.Logger, ports []hostPort) error {
	h := newHolds(log)
	defer h.close()
	for _, p := range ports {
		if _, err := h.take("", []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, p); err != nil {
			return err
		}
	}
	return nil
}

// bind binds one address of a mapping. It returns no socket if the address cannot be bound, and no
// process listens there.
func (h *holds) bind(p hostPort, ip netip.Addr) (sockets []int, err error) {
	s, err := bindPort(p.Protocol, netip.AddrPortFrom(ip, p.Port))
	switch {
	case err == nil:
		return []int{s}, nil
	case errors.Is(err, unix.EADDRINUSE):
		at, taken, err := listener(p, ip)
		if err != nil {
			return nil, fmt.Errorf("host port %s: look for who listens there: %w", p, err)
		}
		if taken {
			return nil, fmt.Errorf("%w: %s: a process of the node listens on %s; stop it, or choose another host port", ErrPortInUse, p, at)
		}
		// Connections keep their port, and go on. What is sent to ::1 is not translated.
		h.log.Info("a host port of a pod cannot be kept from programs of the node: connections of the node use it, or a listener on ::1", "port",
			p.String())
		return nil, nil
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EPROTONOSUPPORT):
		return nil, nil // No IPv6 here, or no SCTP: no program can listen there either.
	default:
		return nil, fmt.Errorf("host port %s: bind %s: %w", p, ip, err)
	}
}

// bindPort returns a socket that is bound and gets nothing.
func bindPort(protocol string, at netip.AddrPort) (int, error) {
	kind := unix.SOCK_STREAM
	number, _ := firewall.ProtocolNumber(protocol)
	switch protocol {
	case "udp":
		kind = unix.SOCK_DGRAM
	case "sctp":
		// A socket would make the kernel load SCTP, which few nodes want to serve.
		if unix.Access("/proc/net/sctp", unix.F_OK) != nil {
			return -1, unix.EPROTONOSUPPORT
		}
	}
	domain, level, free := unix.AF_INET, unix.SOL_IP, unix.IP_FREEBIND
	var addr unix.Sockaddr = &unix.SockaddrInet4{Port: int(at.Port())}
	if at.Addr().Is6() {
		domain, level, free = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_FREEBIND
		addr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	} else {
		addr.(*unix.SockaddrInet4).Addr = at.Addr().As4()
	}
	s, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, int(number))
	if err != nil {
		return -1, err
	}
	// The address may come later, as that of a cluster that moves between nodes.
	err = unix.SetsockoptInt(s, level, free, 1)
	if at.Addr().Is6() {
		err = errors.Join(err, unix.SetsockoptInt(s, level, unix.IPV6_V6ONLY, 1))
	}
	if protocol == "udp" {
		// What is not translated, such as packets to ::1, would wait here for a reader.
		err = errors.Join(err, unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, 0))
	}
	if err == nil {
		err = unix.Bind(s, addr)
	}
	if errors.Is(err, unix.EADDRINUSE) && protocol == "tcp" {
		// Connections of a server that has ended keep its port for a minute (TIME_WAIT), but not
		// from those who set SO_REUSEADDR. It is taken back at once, or another could listen with
		// it.
		if err = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil {
			err = errors.Join(unix.Bind(s, addr), unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
		}
	}
	if err != nil {
		_ = unix.Close(s)
		return -1, err
	}
	return s, nil
}

// tcpListen and udpOpen are states in /proc/net (include/net/tcp_states.h): TCP_LISTEN, and
// TCP_CLOSE, which an UDP socket has that is not connected.
const tcpListen, udpOpen = 10, 7

// listener returns the address where a process of the node listens on a port that cannot be bound
// to ip, and gets what the rules translate. Sockets of connections, which cannot be bound next to
// either, are no listeners, nor is one on ::1.
func listener(p hostPort, ip netip.Addr) (at netip.AddrPort, taken bool, err error) {
	proc, err := procfs.NewFS("/proc/self") // this process's network namespace
	if err != nil {
		return at, false, err
	}
	matches := func(local net.IP, port, state, listens uint64) bool {
		a, ok := netip.AddrFromSlice(local)
		a = a.Unmap()
		if !ok || port != uint64(p.Port) || state != listens || a == netip.IPv6Loopback() {
			return false
		}
		at = netip.AddrPortFrom(a, p.Port)
		// A socket on :: may take IPv4, too; which one does is not in the table.
		return a == ip || ip.IsUnspecified() && a.Is4() == ip.Is4() || a.IsUnspecified() && (a.Is6() || ip.Is4())
	}
	switch p.Protocol {
	case "tcp":
		// The table is there on each kernel, the socket diagnosis that is to replace it (inet_diag)
		// is a module.
		//lint:ignore SA1019 inet_diag may be missing
		four, err4 := proc.NetTCP()
		//lint:ignore SA1019 inet_diag may be missing
		six, err6 := proc.NetTCP6()
		for _, s := range append(four, six...) {
			if matches(s.LocalAddr, s.LocalPort, s.St, tcpListen) {
				return at, true, nil
			}
		}
		return at, false, withoutMissing(err4, err6)
	case "udp":
		four, err4 := proc.NetUDP()
		six, err6 := proc.NetUDP6()
		for _, s := range append(four, six...) {
			if matches(s.LocalAddr, s.LocalPort, s.St, udpOpen) {
				return at, true, nil
			}
		}
		return at, false, withoutMissing(err4, err6)
	}
	return netip.AddrPortFrom(ip, p.Port), true, nil // SCTP does not bind a connection's port
}

// withoutMissing joins errors but those of a family that the kernel does not have.
func withoutMissing(errs ...error) error {
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, fs.ErrNotExist) })...)
}

// hold binds the host ports of a new pod, all or none, and notes in the lease which are held.
func (b *builtin) hold(l *lease) error {
	for _, p := range l.Ports {
		held, err := b.holds.take(l.PodID, l.IPs, p)
		if err != nil {
			b.holds.release(l.PodID)
			return err
		}
		if held {
			l.Held = append(l.Held, p)
		}
	}
	return nil
}
