package loadbalancer

import (
	"errors"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// PortBusy says whether a process of this machine listens on a port of one of its addresses, or
// coracled keeps the port for a pod (hostPort); local is false if the address is another machine's.
func PortBusy(at netip.AddrPort, protocol corev1.Protocol) (busy, local bool) {
	return inUse(at, protocol), isLocal(at.Addr())
}

// isLocal says whether this machine has an address. That a port can be bound does not: with the
// sysctl ip_nonlocal_bind, those of any address can.
func isLocal(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(each net.Addr) bool {
		own, err := netip.ParsePrefix(each.String())
		return err == nil && own.Addr().Unmap() == a
	})
}

// inUse tries to bind the port, and listens on nothing. A connection that happens to have the port
// counts, too, which passes.
func inUse(at netip.AddrPort, protocol corev1.Protocol) bool {
	kind := unix.SOCK_STREAM
	switch protocol {
	case corev1.ProtocolUDP:
		kind = unix.SOCK_DGRAM
	case corev1.ProtocolSCTP:
		return false // a socket would make the kernel load SCTP, which few nodes serve
	}
	domain, addr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: as4(at.Addr())})
	if at.Addr().Is6() {
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false // nothing can listen there either
	}
	defer func() { _ = unix.Close(fd) }()
	if kind == unix.SOCK_STREAM { // a port that an ended connection leaves in TIME_WAIT is free
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false
		}
	}
	return errors.Is(unix.Bind(fd, addr), unix.EADDRINUSE)
}

func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}
