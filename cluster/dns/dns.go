// Package dns is the cluster's DNS. It answers for the names of Services, endpoints and pods from
// the process's informers, as Kubernetes' specification of DNS for Services says (version 1.1), and
// asks the node's name servers for all other names.
//
// It listens at an address that only the node and its pods reach (package nodeaddr), the one that
// the kubelet hands out to pods; each node answers its own pods. The Service kube-system/kube-dns
// has that address, so that users see it.
//
// A packet passes one function: handler.handle parses it with the library, decides at once, or
// returns the work of asking others. What the cluster knows is in zone, other names are in package
// forward. Packets are hostile: their size, the records of an answer, the questions under way, the
// connections and the answers remembered are bounded.
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns/forward"
	"github.com/coracle-project/coracle/cluster/dns/resolvconf"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// port is where clients ask. The sockets are at another one, from firstPort to lastPort, and
// packets are renamed (nodeaddr.Rename): at port 53, they would keep every other DNS server of the
// node from listening on all addresses, and pods from having host port 53. IANA has given these
// ports to no one, and only root may listen there: another user's process cannot take the queries
// while this one restarts.
const port, firstPort, lastPort = 53, 334, 343

// retry is how long to wait before the address is tried again that another has.
const retry = 10 * time.Second

// Options say where and what the server answers. Empty fields take the defaults that are written
// with them.
type Options struct {
	// Addresses are where it answers; required.
	Addresses []netip.Addr
	// Pods are those that reach it besides those on coracled's links.
	Pods *nodeaddr.Pods
	// Domain of the cluster (cluster.local).
	Domain string
	// ServiceNets are the networks of Services: names of their addresses are asked of no one else.
	ServiceNets []netip.Prefix
	// ResolvConf is the file with the node's name servers (resolvconf.Path).
	ResolvConf string
	// Stubs are name servers of domains, instead of the node's.
	Stubs map[string][]netip.AddrPort
	// Health gets whether the server answers; it may be nil.
	Health *health.Part
	// Log gets what an operator should know; nil is the Set's.
	Log *slog.Logger
}

// Domain returns the form of a domain's name that Stubs have, and whether it is one.
func Domain(name string) (string, bool) {
	name = strings.ToLower(dns.Fqdn(name))
	_, ok := dns.IsDomainName(name)
	return name, ok && name != "."
}

// Server is the cluster's DNS on one node.
type Server struct {
	opts    Options
	kube    kubernetes.Interface
	objects *objects
	changed chan struct{} // has a value when the Service kube-dns may have changed
	retry   time.Duration // retry, but in tests
}

// New returns a Server. It asks for its informers and makes no call.
func New(s *client.Set, o Options) (*Server, error) {
	if len(o.Addresses) == 0 {
		return nil, errors.New("cluster DNS: an address to answer at is required")
	}
	if o.Domain == "" {
		o.Domain = "cluster.local"
	}
	if o.ResolvConf == "" {
		o.ResolvConf = resolvconf.Path()
	}
	o.Log = cmp.Or(o.Log, s.Logger())
	objects, err := newObjects(s.Informers)
	if err != nil {
		return nil, fmt.Errorf("cluster DNS: %w", err)
	}
	server := &Server{opts: o, kube: s.Kube, objects: objects, changed: make(chan struct{}, 1), retry: retry}
	if err := server.watchService(); err != nil {
		return nil, fmt.Errorf("cluster DNS: %w", err)
	}
	return server, nil
}

// Run answers until ctx ends. Where it cannot, because another has the address or the port, it says
// so and tries again: the rest of the cluster works. A Service kube-dns of the user's own replaces
// it.
func (s *Server) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", s.objects.synced()...) {
		return nil
	}
	for said := ""; ctx.Err() == nil; {
		err := s.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := s.retry
		if errors.Is(err, errReplaced) {
			s.opts.Log.Info("the cluster's DNS is the user's own", "service", serviceNamespace+"/"+serviceName)
			s.opts.Health.Works("the Service " + serviceNamespace + "/" + serviceName + " is the user's own")
			said, wait = "", time.Hour
		} else if err != nil {
			s.opts.Health.Fails(err)
			if err.Error() != said {
				s.opts.Log.Error("names of Services do not resolve in pods", "addresses", s.opts.Addresses, "err", err)
			}
			said = err.Error()
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-s.changed:
		}
	}
	return nil
}

// run answers until ctx ends, a socket fails, or the Service is another's.
func (s *Server) run(ctx context.Context) (err error) {
	if err := s.ensureService(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	release, err := nodeaddr.Hold(ctx, s.opts.Addresses, s.opts.Pods, s.opts.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	sockets, at, err := listenAll(s.opts.Addresses)
	if err != nil {
		return err
	}
	defer sockets.close()
	for _, addr := range s.opts.Addresses {
		var restore func() error
		if restore, err = nodeaddr.Rename(netip.AddrPortFrom(addr, port), at); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, restore()) }()
	}
	s.opts.Health.Works(fmt.Sprintf("answers at %s, asks others by %s", s.opts.Addresses, s.opts.ResolvConf))
	s.opts.Log.Info("cluster DNS answers", "addresses", s.opts.Addresses, "socket", at, "domain", s.opts.Domain, "others", s.opts.ResolvConf)
	following := make(chan struct{})
	go func() {
		defer close(following)
		stop(s.follow(ctx))
	}()
	err = s.serve(ctx, sockets)
	stop(nil)
	<-following
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}

// serve answers at sockets until ctx ends or one of them fails, and closes them.
func (s *Server) serve(ctx context.Context, sockets *sockets) error {
	forwarder := forward.New(forward.Config{ResolvConf: s.opts.ResolvConf, Stubs: s.opts.Stubs, Own: s.opts.Addresses, Log: s.opts.Log})
	defer forwarder.Close()
	h := &handler{zone: newZone(s.objects, s.opts.Domain, s.opts.ServiceNets), forward: forwarder, log: s.opts.Log}
	work, ctx := errgroup.WithContext(ctx)
	for _, conn := range sockets.udp {
		work.Go(func() error { return h.serveUDP(conn) })
	}
	for _, l := range sockets.tcp {
		work.Go(newTCPServer(h, l).serve)
	}
	stopped := context.AfterFunc(ctx, func() {
		sockets.close()
		forwarder.Stop()
	})
	defer stopped()
	return work.Wait()
}

// sockets are what a server listens at.
type sockets struct {
	udp []*net.UDPConn
	tcp []net.Listener
}

// listenAll listens at the first port that is free on all addresses.
func listenAll(addrs []netip.Addr) (_ *sockets, at uint16, err error) {
	for at = firstPort; at <= lastPort; at++ {
		s := &sockets{}
		if err = s.listenAt(addrs, at); err == nil {
			return s, at, nil
		}
		s.close()
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, 0, fmt.Errorf("%w; one of the ports %d to %d must be free, for UDP and TCP", err, firstPort, lastPort)
}

func (s *sockets) listenAt(addrs []netip.Addr, at uint16) error {
	for _, addr := range addrs {
		if err := s.listen(netip.AddrPortFrom(addr, at)); err != nil {
			return err
		}
	}
	return nil
}

// listen adds an address, for TCP first: of two processes that try, one fails before it gets any
// query.
func (s *sockets) listen(addr netip.AddrPort) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return err
	}
	s.tcp = append(s.tcp, l)
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr.Addr(), uint16(l.Addr().(*net.TCPAddr).Port))))
	if err != nil {
		return err
	}
	s.udp = append(s.udp, conn)
	return nil
}

func (s *sockets) close() {
	for _, conn := range s.udp {
		conn.Close()
	}
	for _, l := range s.tcp {
		l.Close()
	}
}
