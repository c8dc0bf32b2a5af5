package etcd

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	// peerReadLimit bounds the reading of one request of another member, which may be a snapshot.
	// Each read of it has to make progress within rafthttp.ConnReadTimeout.
	peerReadLimit = 5 * time.Minute
	// peerHeaderLimit bounds the TLS handshake, and then the reading of a request's headers.
	peerHeaderLimit = 10 * time.Second
	// Connections without a request are those that have not shown yet that they are of a member. The
	// oldest is closed for one more: a member needs milliseconds to show it, so it loses its
	// connection only to an attacker who opens as many in that time.
	newFromAddress = 64
	newInAll       = 256
	// Those of members. A member keeps about ten.
	membersFromAddress = 128
	membersInAll       = 512
	// refusedEvery is how often connections to the port for peers that were refused are logged.
	refusedEvery = 10 * time.Second
)

// peerPort is the listener for other members. Package transport of etcd has one without limits,
// whose accept loop ends for good when the process has no descriptor left (EMFILE).
type peerPort struct {
	net.Listener
	log     *zap.Logger
	refusal *rate.Sometimes

	mu sync.Mutex
	// fresh are the connections without a request, the oldest first.
	fresh   []*peerConn
	members map[netip.Prefix]int
	all     int // of members
}

// listenPeers listens at an address, for connections with a certificate as info demands it.
func listenPeers(address string, info *transport.TLSInfo, log *zap.Logger) (*peerPort, *tls.Config, error) {
	config, err := info.ServerConfig()
	if err != nil {
		return nil, nil, err
	}
	config.NextProtos = []string{"http/1.1"} // members use nothing else
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	p := &peerPort{Listener: l, log: log, refusal: &rate.Sometimes{Interval: refusedEvery}, members: map[netip.Prefix]int{}}
	return p, config, nil
}

// server returns the HTTP server for the port. It goes on if the process is out of descriptors for
// a while.
func (p *peerPort) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, ReadTimeout: peerReadLimit, ReadHeaderTimeout: peerHeaderLimit,
		ConnState: p.state, ErrorLog: stdlog.New(p, "", 0),
	}
}

// Accept returns the next connection. If too many have no request, it closes the oldest.
func (p *peerPort) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &peerConn{Conn: conn, port: p, from: origin(conn.RemoteAddr())}
	p.mu.Lock()
	oldest := p.excess(c.from)
	if oldest != nil {
		p.dropFresh(oldest)
	}
	p.fresh = append(p.fresh, c)
	p.mu.Unlock()
	if oldest != nil {
		p.refuse(oldest.RemoteAddr().String(), errTooManyNew)
		_ = oldest.Conn.Close()
	}
	return c, nil
}

var (
	errTooManyNew     = errors.New("too many connections show no certificate of a member: the oldest was closed")
	errTooManyMembers = fmt.Errorf("members have too many connections: more than %d from one address, or %d in all", membersFromAddress, membersInAll)
)

// origin is whose connections are counted together: an address, or the network of an IPv6 address,
// of which a machine has as many addresses as it likes.
func origin(a net.Addr) netip.Prefix {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap()
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	prefix, _ := ip.Prefix(bits) // an address has as many
	return prefix
}

// excess returns the connection that has to go for one more from an origin, nil for none. p.mu is
// held.
func (p *peerPort) excess(from netip.Prefix) *peerConn {
	same, first := 0, -1
	for i, c := range p.fresh {
		if c.from == from {
			if same == 0 {
				first = i
			}
			same++
		}
	}
	switch {
	case same >= newFromAddress:
		return p.fresh[first]
	case len(p.fresh) >= newInAll:
		return p.fresh[0]
	}
	return nil
}

// dropFresh says whether a connection was one without a request. p.mu is held.
func (p *peerPort) dropFresh(c *peerConn) bool {
	i := slices.Index(p.fresh, c)
	if i >= 0 {
		p.fresh = slices.Delete(p.fresh, i, i+1)
	}
	return i >= 0
}

// state follows connections. The first request on one is that of a member: the handshake, with the
// proof that it has the certificate's key, is done by then. (The callbacks of crypto/tls precede
// that proof, and certificates of members are no secrets.)
func (p *peerPort) state(conn net.Conn, state http.ConnState) {
	secured, ok := conn.(*tls.Conn)
	if !ok || state != http.StateActive {
		return
	}
	c := secured.NetConn().(*peerConn)
	p.mu.Lock()
	refused := false
	if p.dropFresh(c) {
		if refused = p.all >= membersInAll || p.members[c.from] >= membersFromAddress; !refused {
			c.member = true
			p.all++
			p.members[c.from]++
		}
	}
	p.mu.Unlock()
	if refused {
		p.refuse(c.RemoteAddr().String(), errTooManyMembers)
		_ = c.Close()
	}
}

// closed forgets a connection.
func (p *peerPort) closed(c *peerConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropFresh(c) || !c.member {
		return
	}
	c.member = false
	p.all--
	if p.members[c.from]--; p.members[c.from] == 0 {
		delete(p.members, c.from)
	}
}

// Write logs what the HTTP server says of connections that fail, such as those without a member's
// certificate.
func (p *peerPort) Write(text []byte) (int, error) {
	said := bytes.TrimSpace(text)
	if rest, ok := bytes.CutPrefix(said, []byte("http: TLS handshake error from ")); ok {
		remote, cause, _ := bytes.Cut(rest, []byte(": "))
		p.refuse(string(remote), errors.New(string(cause)))
		return len(text), nil
	}
	p.refusal.Do(func() { p.log.Warn("the port for members", zap.Error(errors.New(string(said)))) })
	return len(text), nil
}

// refuse logs a connection that is refused, which is how an operator sees that a certificate has
// expired. Anyone can open them, so not each is logged.
func (p *peerPort) refuse(remote string, err error) {
	p.refusal.Do(func() {
		p.log.Warn("refused a connection to the port for members", zap.String("remote", remote), zap.Error(err))
	})
}

// peerConn is a connection on which each read and each write has to make progress soon, and within
// the deadlines that the HTTP server sets.
type peerConn struct {
	net.Conn
	port *peerPort
	from netip.Prefix
	// member is guarded by the port's mutex.
	member bool

	mu    sync.Mutex
	read  time.Time
	write time.Time
}

// sooner returns the earlier of a deadline, which may be zero for none, and the end of limit.
func sooner(deadline time.Time, limit time.Duration) time.Time {
	end := time.Now().Add(limit)
	if deadline.IsZero() || end.Before(deadline) {
		return end
	}
	return deadline
}

func (c *peerConn) Read(b []byte) (int, error) {
	if err := c.extend(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *peerConn) extend() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Conn.SetReadDeadline(sooner(c.read, rafthttp.ConnReadTimeout))
}

func (c *peerConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	err := c.Conn.SetWriteDeadline(sooner(c.write, rafthttp.ConnWriteTimeout))
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *peerConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = t
	return c.Conn.SetReadDeadline(sooner(t, rafthttp.ConnReadTimeout))
}

func (c *peerConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = t
	return c.Conn.SetWriteDeadline(sooner(t, rafthttp.ConnWriteTimeout))
}

func (c *peerConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *peerConn) Close() error {
	c.port.closed(c)
	return c.Conn.Close()
}
