// Package forward answers questions about names that are not the cluster's, by asking the node's
// name servers, or those of a stub domain, and remembers the answers.
//
// All it may take is bounded: bytes of answers kept, questions under way (in all and for each
// client), time for a question. Equal questions at the same time are asked once.
package forward

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// total is how long a question may take. Clients wait for five seconds.
	total = 4500 * time.Millisecond
	// foundBytes and missingBytes are what kept answers may take: some 8,000 of each kind.
	foundBytes, missingBytes = 4 << 20, 3 << 20
	// maxUnderWay bounds the questions that are asked at the same time. Each takes a socket and
	// some 10 kB.
	maxUnderWay = 1024
)

// Question is what is asked of other servers.
type Question struct {
	Name   string // lower case, with the final dot
	Type   uint16
	DO, CD bool // the client's bits (RFC 4035, 3.2)
}

// Config says who is asked.
type Config struct {
	// ResolvConf is the file with the node's name servers. It is read again when it has changed.
	ResolvConf string
	// Stubs are the servers of domains, by lower-case names with the final dot, instead of the
	// node's.
	Stubs map[string][]netip.AddrPort
	// Own are addresses where the answers given here come from; they are never asked.
	Own []netip.Addr
	// Log gets what an operator should know; nil discards it.
	Log *slog.Logger
}

// Forwarder asks other servers. Its methods may be called concurrently.
type Forwarder struct {
	ctx   context.Context // ends with Close
	stop  context.CancelFunc
	work  sync.WaitGroup
	cache *cache
	node  nodeServers
	stubs map[string][]*server
	loops probes
	same  singleflight.Group

	mu       sync.Mutex
	underWay int
	ofClient map[netip.Addr]int
}

// New returns a Forwarder; Close ends it.
func New(c Config) *Forwarder {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	f := &Forwarder{
		cache: newCache(foundBytes, missingBytes), stubs: map[string][]*server{}, ofClient: map[netip.Addr]int{},
		node: nodeServers{file: c.ResolvConf, own: c.Own, log: c.Log},
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	for domain, addrs := range c.Stubs {
		for _, addr := range addrs {
			f.stubs[domain] = append(f.stubs[domain], &server{addr: addr, domain: domain, log: c.Log})
		}
	}
	return f
}

// Stop gives up what is under way.
func (f *Forwarder) Stop() { f.stop() }

// Close gives up what is under way and waits for its end. No method may be called afterwards.
func (f *Forwarder) Close() {
	f.stop()
	f.work.Wait()
}

// Cached returns a remembered answer, nil for none. The caller may change it.
func (f *Forwarder) Cached(q Question) *dns.Msg { return f.cache.get(q, time.Now()) }

// Admit reserves what it takes to Ask for a client, unless too much is under way. The caller calls
// release when it has its answer.
//
// A client may have as many questions under way as are still free: half of all if it is alone, and
// less the more others ask. So one that floods leaves as many to all others, and several that flood
// still leave some.
func (f *Forwarder) Admit(client netip.Addr) (release func(), ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ofClient[client] >= maxUnderWay-f.underWay {
		return nil, false
	}
	f.underWay++
	f.ofClient[client]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.underWay--
		if f.ofClient[client]--; f.ofClient[client] == 0 {
			delete(f.ofClient, client)
		}
	}, true
}

// Ask returns an answer without OPT record, SERVFAIL if no server gives one. The caller may change
// it.
func (f *Forwarder) Ask(q Question) *dns.Msg {
	if m := f.Cached(q); m != nil { // it came while the caller was on its way
		return m
	}
	key := q.Name + string([]byte{0, byte(q.Type >> 8), byte(q.Type), bit(q.DO), bit(q.CD)})
	answer, _, shared := f.same.Do(key, func() (any, error) {
		if m := f.Cached(q); m != nil { // of those who asked together until now
			return m, nil
		}
		ctx, cancel := context.WithTimeout(f.ctx, total)
		defer cancel()
		m := f.ask(ctx, q)
		if f.ctx.Err() == nil {
			f.cache.put(q, m, time.Now())
		}
		return m, nil
	})
	m := answer.(*dns.Msg)
	if shared {
		return m.Copy()
	}
	return m
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// ask asks the servers one after the other, as often as there is time.
func (f *Forwarder) ask(ctx context.Context, q Question) *dns.Msg {
	failure := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Rcode: dns.RcodeServerFailure}}
	servers := f.servers(q.Name)
	for range 2 {
		for _, s := range servers {
			m, err := s.ask(ctx, q)
			if ctx.Err() != nil && err != nil {
				return failure
			}
			if err != nil {
				s.failed(err)
				continue
			}
			s.answered()
			if m.Rcode != dns.RcodeServerFailure && m.Rcode != dns.RcodeRefused {
				return m
			}
			failure = m
		}
		if len(failure.Question) > 0 { // a server has said so
			return failure
		}
	}
	return failure
}

// servers returns those to ask for a name: of the longest stub domain, or the node's. Those that
// did not answer lately come last; those that ask us in turn are left out.
func (f *Forwarder) servers(name string) []*server {
	servers, stub := f.stubs[stubOf(name, f.stubs)]
	if !stub {
		servers = f.node.get(time.Now())
	}
	servers = slices.DeleteFunc(slices.Clone(servers), func(s *server) bool { return f.looping(s) })
	slices.SortStableFunc(servers, func(a, b *server) int { return int(bit(a.bad())) - int(bit(b.bad())) })
	return servers
}

// stubOf returns the longest domain of stubs that name is in, "" for none.
func stubOf(name string, stubs map[string][]*server) string {
	if len(stubs) == 0 {
		return ""
	}
	for {
		if _, ok := stubs[name]; ok {
			return name
		}
		_, parent, ok := strings.Cut(name, ".")
		if !ok || parent == "" {
			return ""
		}
		name = parent
	}
}
