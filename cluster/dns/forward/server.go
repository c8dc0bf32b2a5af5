package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/coracle-project/coracle/cluster/dns/resolvconf"
)

const (
	// patience is how long one server is waited for.
	patience = 2 * time.Second
	// avoided is how long a server that did not answer is asked after the others.
	avoided = 10 * time.Second
	// payload is how long a datagram may be: what passes any network in one piece (RFC 9715).
	payload = 1232
	// reread is how often the node's configuration is looked at, at most.
	reread = 5 * time.Second
)

// server is one name server.
type server struct {
	addr     netip.AddrPort
	domain   string // of a stub domain, with the final dot; "" for one of the node's
	log      *slog.Logger
	badUntil atomic.Int64 // nanoseconds of the Unix time
	loop     loop
}

func (s *server) bad() bool { return time.Now().UnixNano() < s.badUntil.Load() }

func (s *server) answered() { s.badUntil.Store(0) }

func (s *server) failed(err error) {
	s.loop.unsure.Store(true) // it may have begun to ask us
	if s.badUntil.Swap(time.Now().Add(avoided).UnixNano()) == 0 {
		s.log.Warn("a name server does not answer", "server", s.addr, "err", err)
	}
}

// ask asks over UDP, and over TCP if the answer is cut short. Servers that know no EDNS are asked
// without (RFC 6891, 7).
func (s *server) ask(ctx context.Context, q Question) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(q.Name, q.Type)
	query.CheckingDisabled = q.CD
	query.SetEdns0(payload, q.DO)
	m, err := s.exchange(ctx, "udp", query)
	if err == nil && (m.Rcode == dns.RcodeFormatError || m.Rcode == dns.RcodeNotImplemented) {
		query.Extra = nil
		m, err = s.exchange(ctx, "udp", query)
	}
	switch {
	case errors.Is(err, errCut):
		m, err = s.exchange(ctx, "tcp", query)
	case err == nil && m.Truncated:
		if whole, err := s.exchange(ctx, "tcp", query); err == nil {
			m = whole
		}
	}
	if err != nil {
		return nil, err
	}
	// EDNS is between us and the server (RFC 6891, 6.1.1), and so are signatures of transactions.
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool {
		t := rr.Header().Rrtype
		return t == dns.TypeOPT || t == dns.TypeTSIG
	})
	if m.Rcode > 0xf {
		m.Rcode = dns.RcodeServerFailure
	}
	m.Authoritative = false
	return m, nil
}

var (
	errOtherQuestion = errors.New("the answer is to another question")
	// errCut is of a datagram that ends within a record: the server has sent more than we take, or
	// something on the way has cut it.
	errCut = errors.New("the answer does not fit a datagram")
)

// exchange sends a query from a port of its own and waits for the answer.
func (s *server) exchange(ctx context.Context, network string, query *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	query.Id = dns.Id()
	client := dns.Client{Net: network, UDPSize: payload, Timeout: patience}
	conn, err := client.DialContext(ctx, s.addr.String())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	m, _, err := client.ExchangeWithConnContext(ctx, query, conn)
	if err != nil && network == "udp" && m != nil && m.Id == query.Id {
		return nil, errCut
	}
	if err != nil {
		return nil, err
	}
	asked := query.Question[0]
	switch {
	case !m.Response:
		return nil, errOtherQuestion
	case len(m.Question) == 0 && m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError: // some leave it out of errors
		m.Question = query.Question
	case len(m.Question) != 1 || m.Question[0].Qtype != asked.Qtype || m.Question[0].Qclass != asked.Qclass ||
		!strings.EqualFold(m.Question[0].Name, asked.Name):
		return nil, errOtherQuestion
	}
	return m, nil
}

// nodeServers are the servers that a file names.
type nodeServers struct {
	file string
	own  []netip.Addr
	log  *slog.Logger

	mu      sync.Mutex
	look    time.Time // when the file is looked at next
	seen    os.FileInfo
	problem string
	servers []*server
}

// get returns the servers, and reads the file if it has changed. If it cannot be read, what was
// read before holds.
func (n *nodeServers) get(now time.Time) []*server {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Before(n.look) {
		return n.servers
	}
	n.look = now.Add(reread)
	if err := n.readLocked(); err != nil && err.Error() != n.problem {
		n.problem = err.Error()
		n.log.Warn("names outside of the cluster may not resolve", "err", err)
	} else if err == nil {
		n.problem = ""
	}
	return n.servers
}

func (n *nodeServers) readLocked() error {
	info, err := os.Stat(n.file)
	if err != nil {
		return err
	}
	if n.seen != nil && os.SameFile(n.seen, info) && n.seen.ModTime().Equal(info.ModTime()) && n.seen.Size() == info.Size() {
		return nil
	}
	addrs, err := resolvconf.Servers(n.file)
	if err != nil {
		return err
	}
	n.seen = info
	var servers []*server
	for _, addr := range addrs {
		if slices.Contains(n.own, addr.Addr()) { // the node asks us
			continue
		}
		i := slices.IndexFunc(n.servers, func(s *server) bool { return s.addr == addr })
		if i < 0 {
			servers = append(servers, &server{addr: addr, log: n.log})
		} else {
			servers = append(servers, n.servers[i])
		}
	}
	n.servers = servers
	if len(servers) == 0 {
		return fmt.Errorf("%s names no server but this one", n.file)
	}
	return nil
}
