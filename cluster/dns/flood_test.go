package dns

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

// A flood of random names neither takes memory nor keeps others from what is known already, whether
// these names exist or not.
func TestFloodOfRandomNames(t *testing.T) {
	var asked atomic.Int32
	none := upstream(t, func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		m := new(dns.Msg)
		m.SetRcode(q, dns.RcodeNameError)
		soa, err := dns.NewRR("none. 60 IN SOA ns.none. root.none. 1 1 1 1 60")
		if err != nil {
			panic(err)
		}
		m.Ns = []dns.RR{soa}
		return m
	})
	wild := upstream(t, func(q *dns.Msg) *dns.Msg {
		asked.Add(1)
		return example(q)
	})
	h := newHandler(t, forward.Config{Stubs: map[string][]netip.AddrPort{"none.": {none}, "wild.": {wild}}}, cluster()...)
	const workers = 8
	long := strings.Repeat(strings.Repeat("x", 60)+".", 3) // fewer are remembered
	flood := func(domain string, rcode, n int) {
		var work sync.WaitGroup
		for worker := range workers {
			work.Go(func() {
				for i := range n / workers {
					name := fmt.Sprintf("%x.%d.%d.%s%s", rand.Uint64(), worker, i, long, domain)
					if m := h.query(t, sender{pod, true}, name, dns.TypeA); m.Rcode != rcode {
						t.Errorf("%s: %v", name, m)
						return
					}
				}
			})
		}
		work.Wait()
	}
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	const n = 8000 // more than are remembered
	for domain, rcode := range map[string]int{"none.": dns.RcodeNameError, "wild.": dns.RcodeSuccess} {
		flood(domain, rcode, 100)
		before := heap()
		flood(domain, rcode, n)
		after := heap()
		flood(domain, rcode, n/4)
		later := heap()
		t.Logf("%d names in %s: %d bytes; %d further names: %d bytes", n, domain, after-before, n/4, later-after)
		if after-before > 6<<20 || later-after > 1<<20 {
			t.Errorf("%d random names in %s take %d bytes, %d further names %d bytes", n, domain, after-before, n/4, later-after)
		}
	}
	if asked.Load() < 2*n {
		t.Errorf("only %d questions were asked: the test shows nothing", asked.Load())
	}
}

// resolver asks a server from one socket.
type resolver struct {
	t    testing.TB
	conn net.Conn
}

// from is a resolver at a loopback address of its own.
func from(t testing.TB, local string, at netip.AddrPort) *resolver {
	t.Helper()
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(local)}, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetReadBuffer(receiveBuffer)
	return &resolver{t, conn}
}

func (r *resolver) send(name string, kind uint16) {
	r.t.Helper()
	if _, err := r.conn.Write(ask(r.t, name, kind)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *resolver) reply() *dns.Msg {
	r.t.Helper()
	_ = r.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	p := make([]byte, 4096)
	n, err := r.conn.Read(p)
	m := new(dns.Msg)
	if err == nil {
		err = m.Unpack(p[:n])
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// A client may ask for 100 names at once, both kinds of addresses of each, although an answer takes
// long.
func TestManyNamesAtOnce(t *testing.T) {
	const n = 200
	var mu sync.Mutex
	asked, all := map[string]bool{}, make(chan struct{})
	at := listening(t, newHandler(t, stub("example.", upstream(t, func(q *dns.Msg) *dns.Msg {
		m := new(dns.Msg)
		m.SetReply(q)
		if q.Question[0].Qtype == dns.TypeHINFO { // a test for loops
			return m
		}
		mu.Lock()
		if key := q.Question[0].String(); !asked[key] {
			if asked[key] = true; len(asked) == n {
				close(all)
			}
		}
		mu.Unlock()
		<-all
		return m
	}))))
	r := from(t, "127.0.0.1", at)
	for i := range n / 2 {
		r.send(fmt.Sprintf("%d.example.", i), dns.TypeA)
		r.send(fmt.Sprintf("%d.example.", i), dns.TypeAAAA)
	}
	for range n {
		if m := r.reply(); m.Rcode != dns.RcodeSuccess {
			t.Fatalf("%s: %s", m.Question[0].Name, dns.RcodeToString[m.Rcode])
		}
	}
}

// While one client floods and all that it may have under way waits for others, names of the cluster
// resolve, its further questions of others fail at once, and other clients' are answered.
func TestOthersResolveDuringAFlood(t *testing.T) {
	wait := make(chan struct{})
	silent := upstream(t, func(q *dns.Msg) *dns.Msg {
		<-wait
		return example(q)
	})
	h := newHandler(t, forward.Config{Stubs: map[string][]netip.AddrPort{"silent.": {silent}, "example.": {upstream(t, example)}}},
		cluster()...)
	at := listening(t, h)
	defer close(wait)
	flooding, other := from(t, "127.0.0.2", at), from(t, "127.0.0.3", at)
	// The kernel may drop some of a burst, so each of the client's share is followed by a question
	// of the cluster.
	const n = 700
	refused := 0
	for i := range n {
		flooding.send(fmt.Sprintf("%d.silent.", i), dns.TypeA)
		flooding.send("web.default"+svc, dns.TypeA)
		for {
			m := flooding.reply()
			if m.Question[0].Name == "web.default"+svc {
				if len(m.Answer) != 1 {
					t.Fatal(m)
				}
				break
			}
			if m.Rcode != dns.RcodeServerFailure {
				t.Fatal(m)
			}
			refused++
		}
	}
	if refused < n/10 {
		t.Errorf("only %d of %d questions were refused: the test shows nothing", refused, n)
	}
	for i := range 100 {
		other.send(fmt.Sprintf("%d.example.", i), dns.TypeA)
	}
	for range 100 {
		if m := other.reply(); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
			t.Fatalf("during another's flood: %v", m)
		}
	}
}

// BenchmarkManyNamesAtOnce is how long 100 names take that no one has asked for, with a name server
// that answers after 50 ms.
func BenchmarkManyNamesAtOnce(b *testing.B) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	slow := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		time.AfterFunc(50*time.Millisecond, func() { _ = w.WriteMsg(example(q)) })
	})}
	go func() { _ = slow.ActivateAndServe() }()
	defer conn.Close()
	h := newHandler(b, stub("example.", conn.LocalAddr().(*net.UDPAddr).AddrPort()))
	r := from(b, "127.0.0.1", listening(b, h))
	failed, round := 0, 0
	for b.Loop() {
		round++
		for i := range 100 {
			r.send(fmt.Sprintf("%d.%d.example.", i, round), dns.TypeA)
			r.send(fmt.Sprintf("%d.%d.example.", i, round), dns.TypeAAAA)
		}
		for range 200 {
			if r.reply().Rcode != dns.RcodeSuccess {
				failed++
			}
		}
	}
	b.ReportMetric(float64(failed)/float64(round), "failed/round")
}
