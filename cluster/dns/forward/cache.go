package forward

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// cache keeps answers until they expire, and no more of them than fit. Answers that a name exists
// are apart from all others: a flood of random names pushes only its own kind out.
type cache struct {
	found   shelf
	missing shelf
}

const (
	// maxTTL bounds how long an answer is kept, whatever its TTL says; maxMissingTTL does so for
	// one that there is nothing (RFC 2308, 5).
	maxTTL        = time.Hour
	maxMissingTTL = 5 * time.Minute
	// failureTTL is for answers that say that the server cannot tell (RFC 9520, 3.2).
	failureTTL = time.Second
	// maxKept is how long an answer may be on the wire to be kept.
	maxKept = 8 << 10
	// overhead is what an entry takes besides its message and its name: two maps' and a list's
	// shares, and headers of the Go runtime.
	overhead = 256
)

func newCache(foundBytes, missingBytes int) *cache {
	return &cache{found: shelf{limit: foundBytes}, missing: shelf{limit: missingBytes}}
}

// get returns the answer to a question, with TTLs of now; nil for none. The caller may change it.
func (c *cache) get(q Question, now time.Time) *dns.Msg {
	e := c.found.get(q, now)
	if e == nil {
		e = c.missing.get(q, now)
	}
	if e == nil {
		return nil
	}
	m := new(dns.Msg)
	if m.Unpack(e.wire) != nil { // it was packed here
		return nil
	}
	age := uint32(now.Sub(e.since) / time.Second)
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			h := rr.Header()
			h.Ttl -= min(age, h.Ttl)
		}
	}
	return m
}

// put keeps an answer for as long as its TTLs say. It must have no OPT record.
func (c *cache) put(q Question, m *dns.Msg, now time.Time) {
	ttl, where := keptFor(m)
	if ttl <= 0 {
		return
	}
	m.Compress = true
	wire, err := m.Pack()
	if err != nil || len(wire) > maxKept {
		return
	}
	shelf := &c.found
	if where == missing {
		shelf = &c.missing
	}
	shelf.put(&entry{q: q, wire: append([]byte(nil), wire...), since: now, until: now.Add(ttl)})
}

// kind of an answer.
type kind int

const (
	found kind = iota
	missing
)

// keptFor returns for how long an answer holds.
func keptFor(m *dns.Msg) (time.Duration, kind) {
	switch {
	case m.Truncated:
		return 0, missing
	case m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0:
		return lowestTTL(maxTTL, m.Answer, m.Ns, m.Extra), found
	case m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError:
		for _, rr := range m.Ns {
			if soa, ok := rr.(*dns.SOA); ok {
				ttl := min(maxMissingTTL, time.Duration(soa.Minttl)*time.Second)
				return lowestTTL(ttl, m.Answer, m.Ns), missing
			}
		}
		return 0, missing // it does not say for how long there is nothing
	default:
		return failureTTL, missing
	}
}

// lowestTTL returns the lowest TTL of the records, at most limit.
func lowestTTL(limit time.Duration, sections ...[]dns.RR) time.Duration {
	for _, section := range sections {
		for _, rr := range section {
			limit = min(limit, time.Duration(rr.Header().Ttl)*time.Second)
		}
	}
	return limit
}

// shelf is a map that forgets what was not asked for longest when it is full.
type shelf struct {
	limit int // bytes

	mu      sync.Mutex
	used    int
	entries map[Question]*list.Element // of *entry
	order   list.List                  // the last that was asked for first
}

type entry struct {
	q            Question
	wire         []byte
	since, until time.Time
}

func (e *entry) size() int { return len(e.wire) + len(e.q.Name) + overhead }

func (s *shelf) get(q Question, now time.Time) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	element := s.entries[q]
	if element == nil {
		return nil
	}
	e := element.Value.(*entry)
	if !now.Before(e.until) {
		s.removeLocked(element)
		return nil
	}
	s.order.MoveToFront(element)
	return e
}

func (s *shelf) put(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.entries[e.q]; old != nil {
		s.removeLocked(old)
	}
	if s.entries == nil {
		s.entries = map[Question]*list.Element{}
	}
	s.entries[e.q] = s.order.PushFront(e)
	s.used += e.size()
	for s.used > s.limit {
		s.removeLocked(s.order.Back())
	}
}

func (s *shelf) removeLocked(element *list.Element) {
	e := s.order.Remove(element).(*entry)
	delete(s.entries, e.q)
	s.used -= e.size()
}
