package forward

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// A server of the node may itself ask us, such as a dnsmasq on loopback that was told to use the
// cluster's DNS: no name would ever resolve. So each server is asked for a random name, once, and
// again when it does not answer. If the question comes back here, the server is left out, and asked
// again from time to time. The name is one of the server's domain: that it asks us for others is no
// loop.

// again is the pause between tests of a server that asks us or does not answer.
const again = 30 * time.Second

// loop is what is known of a server.
type loop struct {
	found atomic.Bool
	// unsure is set when the server did not answer, since a test that it has passed.
	unsure atomic.Bool
	next   atomic.Int64 // when it may be tested next, in nanoseconds of the Unix time
}

// probes are the random names that are asked for now.
type probes struct {
	count atomic.Int32

	mu    sync.Mutex
	names map[string]*server
}

// looping reports whether a server asks us, and has it tested if that is due.
func (f *Forwarder) looping(s *server) bool {
	now, next := time.Now(), s.loop.next.Load()
	if next == 0 || (s.loop.found.Load() || s.loop.unsure.Load()) && now.UnixNano() >= next {
		if s.loop.next.CompareAndSwap(next, now.Add(again).UnixNano()) {
			f.work.Go(func() { f.test(s) })
		}
	}
	return s.loop.found.Load()
}

// test asks a server for a random name.
func (f *Forwarder) test(s *server) {
	// Two labels: some servers keep single ones to themselves.
	name := strings.ToLower(rand.Text()+"."+rand.Text()+".") + strings.TrimPrefix(s.domain, ".")
	f.loops.mu.Lock()
	if f.loops.names == nil {
		f.loops.names = map[string]*server{}
	}
	f.loops.names[name] = s
	f.loops.mu.Unlock()
	f.loops.count.Add(1)

	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	err := func() (err error) {
		defer func() { // a fault of the parser ends the question, not the process
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		_, err = s.ask(ctx, Question{Name: name, Type: dns.TypeHINFO})
		return err
	}()

	f.loops.count.Add(-1)
	f.loops.mu.Lock()
	_, returned := f.loops.names[name]
	returned = !returned
	delete(f.loops.names, name)
	f.loops.mu.Unlock()
	s.loop.unsure.Store(err != nil)
	if was := s.loop.found.Swap(returned); was && !returned {
		s.log.Info("a name server does not ask the cluster's DNS any more", "server", s.addr, "err", err)
	}
}

// Returned reports whether a question is one of our own that has come back.
func (f *Forwarder) Returned(q Question) bool {
	if f.loops.count.Load() == 0 || q.Type != dns.TypeHINFO {
		return false
	}
	f.loops.mu.Lock()
	s := f.loops.names[q.Name]
	delete(f.loops.names, q.Name)
	f.loops.mu.Unlock()
	if s == nil {
		return false
	}
	if !s.loop.found.Swap(true) {
		s.log.Error("a name server asks the cluster's DNS, which would ask it: it is not asked any more; "+
			"have it ask other servers, or name others in the node's resolv.conf", "server", s.addr)
	}
	return true
}
