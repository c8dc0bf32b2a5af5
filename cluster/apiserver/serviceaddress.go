package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// Pods do not reach a server on loopback. The node then holds the address of the kubernetes Service
// (package nodeaddr), and the server listens there, too. It listens on its own port and not on the
// Service's, which is redirected to it: a socket on port 443 of one address would keep pods from
// having host port 443, and processes of the node from listening there on all addresses.

// holdAgain is how long to wait before the node tries again to hold the address. Another cluster
// process may just be ending, or an operator follow what the log says; a try takes some system
// calls.
const holdAgain = 5 * time.Second

// listen opens the server's sockets. If the node cannot hold the kubernetes Service's address, only
// pods miss it: the server goes on without, and tries again until ctx ends. letGo undoes it.
func (s *Server) listen(ctx context.Context) (_ net.Listener, letGo func(), err error) {
	first, err := s.options.listen()
	if err != nil || !s.addresses.held {
		if err == nil {
			s.options.PodsHealth.Works(fmt.Sprintf("pods reach the API server at %s", first.Addr()))
		}
		return first, func() {}, err
	}
	all := merge(first)
	at := netip.AddrPortFrom(toAddr(s.addresses.kubernetes), uint16(first.Addr().(*net.TCPAddr).Port))
	h := &heldAddress{server: s, at: at, listeners: all, again: holdAgain}
	return all, h.start(ctx), nil
}

// heldAddress is the address of the kubernetes Service on this node.
type heldAddress struct {
	server    *Server
	at        netip.AddrPort
	listeners *listeners
	again     time.Duration // holdAgain, but in tests
}

// start holds the address, now or as soon as that is possible. stop gives it up.
func (h *heldAddress) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	release, err := h.hold(ctx)
	var trying sync.WaitGroup
	if err != nil {
		h.server.options.Log.Warn("pods do not reach the API server", "address", h.at, "err", err, "again", h.again)
		h.server.options.PodsHealth.Fails(fmt.Errorf("pods do not reach the API server: %w", err))
		trying.Go(func() { release = h.keepTrying(ctx, err) })
	}
	return func() {
		cancel()
		trying.Wait()
		release()
	}
}

// keepTrying is for when the first try has failed. It says so again only for another reason.
func (h *heldAddress) keepTrying(ctx context.Context, said error) (release func()) {
	again := time.NewTicker(h.again)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return func() {}
		case <-again.C:
		}
		release, err := h.hold(ctx)
		if err == nil {
			h.server.options.Log.Info("pods reach the API server", "address", h.at)
			return release
		}
		if err.Error() != said.Error() && ctx.Err() == nil {
			h.server.options.Log.Warn("pods do not reach the API server", "address", h.at, "err", err, "again", h.again)
			h.server.options.PodsHealth.Fails(fmt.Errorf("pods do not reach the API server: %w", err))
			said = err
		}
	}
}

// hold has the node hold the address and the server listen there, unless the server listens on all
// addresses anyway. After an error, release does nothing.
func (h *heldAddress) hold(ctx context.Context) (release func(), err error) {
	nothing := func() {}
	addr := h.at.Addr()
	drop, err := nodeaddr.Hold(ctx, []netip.Addr{addr}, h.server.options.Pods, h.server.options.Log)
	if err != nil {
		return nothing, err
	}
	restore, err := nodeaddr.Redirect(netip.AddrPortFrom(addr, servicePort), h.at.Port())
	if err != nil {
		return nothing, errors.Join(err, drop())
	}
	letGo := func() error { return errors.Join(restore(), drop()) }
	bind, err := netip.ParseAddr(h.server.options.BindAddress)
	if err != nil || !bind.IsUnspecified() || bind.Is4() && addr.Is6() {
		l, err := net.Listen("tcp", h.at.String())
		if err != nil {
			return nothing, errors.Join(listenError(h.at.String(), err), letGo())
		}
		h.listeners.add(limitPerSource(l, podConnections, h.server.options.Log))
	}
	h.server.held.Store(true)
	h.server.options.PodsHealth.Works(fmt.Sprintf("pods reach the API server at %s", netip.AddrPortFrom(addr, servicePort)))
	return func() {
		h.server.held.Store(false)
		if err := letGo(); err != nil {
			h.server.options.Log.Warn("the API server's address for pods is left", "address", h.at, "err", err)
		}
	}, nil
}

// heldEndpoints writes the kubernetes Service's endpoint, which is a held address, only while the
// node holds it.
type heldEndpoints struct {
	reconcilers.EndpointReconciler
	held *atomic.Bool
}

func (h heldEndpoints) ReconcileEndpoints(name string, ip net.IP, ports []corev1.EndpointPort, same bool) error {
	if !h.held.Load() {
		return nil
	}
	return h.EndpointReconciler.ReconcileEndpoints(name, ip, ports, same)
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
