package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// Pods do not reach a server on loopback. The node then holds the address of the kubernetes Service (package nodeaddr),
// and the server listens there, too. It listens on its own port and not on the Service's, which is redirected to it: a
// socket on port 443 of one address would keep pods from having host port 443, and processes of the node from listening
// there on all addresses.

// listen opens the server's sockets. If the node cannot hold the kubernetes Service's address, only pods miss it: the
// server goes on without.
func (s *Server) listen(ctx context.Context) (_ net.Listener, letGo func(), err error) {
	first, err := s.options.listen()
	if err != nil || !s.addresses.held {
		if err == nil {
			s.options.PodsHealth.Works(fmt.Sprintf("pods reach the API server at %s", first.Addr()))
		}
		return first, func() {}, err
	}
	at := netip.AddrPortFrom(toAddr(s.addresses.kubernetes), uint16(first.Addr().(*net.TCPAddr).Port))
	second, letGo, err := s.listenHeld(ctx, at)
	if err != nil {
		slog.Warn("pods do not reach the API server", "address", at, "err", err)
		s.options.PodsHealth.Fails(fmt.Errorf("pods do not reach the API server: %w", err))
		s.addresses.held, s.addresses.public = false, s.addresses.loopback
		return first, func() {}, nil
	}
	s.options.PodsHealth.Works(fmt.Sprintf("pods reach the API server at %s", netip.AddrPortFrom(at.Addr(), servicePort)))
	if second == nil {
		return first, letGo, nil
	}
	return merge(first, second), letGo, nil
}

// listenHeld has the node hold an address and listens there, unless the server listens on all addresses anyway.
func (s *Server) listenHeld(ctx context.Context, at netip.AddrPort) (net.Listener, func(), error) {
	release, err := nodeaddr.Hold(ctx, []netip.Addr{at.Addr()})
	if err != nil {
		return nil, nil, err
	}
	restore, err := nodeaddr.Redirect(netip.AddrPortFrom(at.Addr(), servicePort), at.Port())
	if err != nil {
		return nil, nil, errors.Join(err, release())
	}
	letGo := func() {
		if err := errors.Join(restore(), release()); err != nil {
			slog.Warn("the API server's address for pods is left", "address", at, "err", err)
		}
	}
	bind, err := netip.ParseAddr(s.options.BindAddress)
	if err == nil && bind.IsUnspecified() && (bind.Is6() || at.Addr().Is4()) {
		return nil, letGo, nil
	}
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		letGo()
		return nil, nil, listenError(at.String(), err)
	}
	return limitPerSource(l, podConnections), letGo, nil
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
