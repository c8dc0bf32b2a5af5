package forward

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// upstream is a name server on loopback.
type upstream struct {
	addr  netip.AddrPort
	asked atomic.Int32 // not counting tests for loops
}

// bothAtOnePort listens at a port of loopback that is free for TCP and for UDP.
func bothAtOnePort(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l, conn
		}
		l.Close()
		if !errors.Is(err, unix.EADDRINUSE) { // that is some program's socket for a question
			t.Fatal(err)
		}
	}
}

// serve starts a name server that answers with f, by UDP and TCP at the same port; f returns nil
// for no answer.
func serve(t *testing.T, f func(network string, q *dns.Msg) *dns.Msg) *upstream {
	t.Helper()
	u := &upstream{}
	l, conn := bothAtOnePort(t)
	u.addr = l.Addr().(*net.TCPAddr).AddrPort()
	for network, s := range map[string]*dns.Server{"udp": {PacketConn: conn}, "tcp": {Listener: l}} {
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			if q.Question[0].Qtype != dns.TypeHINFO {
				u.asked.Add(1)
			}
			if m := f(network, q); m != nil {
				_ = w.WriteMsg(m)
			}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.ActivateAndServe()
		}()
		t.Cleanup(func() {
			if network == "udp" {
				conn.Close()
			} else {
				l.Close()
			}
			<-done
		})
	}
	return u
}

// record answers with a record.
func record(q *dns.Msg, text string) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	rr, err := dns.NewRR(q.Question[0].Name + " " + text)
	if err != nil {
		panic(err)
	}
	m.Answer = []dns.RR{rr}
	return m
}

func rcode(q *dns.Msg, code int) *dns.Msg {
	m := new(dns.Msg)
	return m.SetRcode(q, code)
}

// asking asks only these servers.
func asking(t *testing.T, servers ...*upstream) *Forwarder {
	t.Helper()
	f := New(Config{ResolvConf: filepath.Join(t.TempDir(), "none"), Stubs: map[string][]netip.AddrPort{"test.": addrs(servers...)}})
	t.Cleanup(f.Close)
	return f
}

func addrs(servers ...*upstream) (all []netip.AddrPort) {
	for _, s := range servers {
		all = append(all, s.addr)
	}
	return all
}

func question(name string) Question { return Question{Name: name, Type: dns.TypeA} }

// got is an answer in short.
func got(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		all = append(all, strings.Join(strings.Fields(rr.String()), " "))
	}
	return fmt.Sprint(dns.RcodeToString[m.Rcode], all)
}

func TestAnswersOfServers(t *testing.T) {
	const want = "NOERROR[a.test. 60 IN A 192.0.2.1]"
	good := func(_ string, q *dns.Msg) *dns.Msg { return record(q, "60 IN A 192.0.2.1") }
	for name, tc := range map[string]struct {
		first func(network string, q *dns.Msg) *dns.Msg
		want  string // of the first and a good second server
	}{
		"an answer":     {good, want},
		"a name error":  {func(_ string, q *dns.Msg) *dns.Msg { return rcode(q, dns.RcodeNameError) }, "NXDOMAIN[]"},
		"a failure":     {func(_ string, q *dns.Msg) *dns.Msg { return rcode(q, dns.RcodeServerFailure) }, want},
		"a refusal":     {func(_ string, q *dns.Msg) *dns.Msg { return rcode(q, dns.RcodeRefused) }, want},
		"no answer":     {func(string, *dns.Msg) *dns.Msg { return nil }, want},
		"no known EDNS": {func(_ string, q *dns.Msg) *dns.Msg { return onlyWithout(q, good) }, want},
		"a long answer, cut by UDP": {func(network string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.1")
			m.Truncated = network == "udp"
			if m.Truncated {
				m.Answer = nil
			}
			return m
		}, want},
		"an answer to another question": {func(_ string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.66")
			m.Question[0].Name = "b.test."
			return m
		}, want},
		"an answer with another number": {func(_ string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.66")
			m.Id++
			return m
		}, want},
		"an answer of another type": {func(_ string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.66")
			m.Question[0].Qtype = dns.TypeAAAA
			return m
		}, want},
		"an answer without a question": {func(_ string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.66")
			m.Question = nil
			return m
		}, want},
		"a question instead of an answer": {func(_ string, q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.66")
			m.Response = false
			return m
		}, want},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := serve(t, tc.first), serve(t, good)
			if m := asking(t, first, second).Ask(question("a.test.")); got(m) != tc.want || m.IsEdns0() != nil {
				t.Errorf("%v, not %s", m, tc.want)
			}
			if first.asked.Load() == 0 {
				t.Error("the first server was not asked")
			}
		})
	}
}

func onlyWithout(q *dns.Msg, then func(string, *dns.Msg) *dns.Msg) *dns.Msg {
	if q.IsEdns0() != nil {
		return rcode(q, dns.RcodeFormatError)
	}
	return then("", q)
}

// A server that is silent costs the first question some time, and not all later ones.
func TestSilentServersAreAskedLast(t *testing.T) {
	t.Parallel()
	silent := serve(t, func(string, *dns.Msg) *dns.Msg { return nil })
	good := serve(t, func(_ string, q *dns.Msg) *dns.Msg { return record(q, "60 IN A 192.0.2.1") })
	f := asking(t, silent, good)
	for i := range 5 {
		if m := f.Ask(question(fmt.Sprintf("a%d.test.", i))); m.Rcode != dns.RcodeSuccess {
			t.Error(m)
		}
	}
	if n := silent.asked.Load(); n != 1 {
		t.Errorf("the silent server was asked %d times", n)
	}
}

// No server answers: the client hears of it before it gives up.
func TestFailureIsInTime(t *testing.T) {
	t.Parallel()
	silent := serve(t, func(string, *dns.Msg) *dns.Msg { return nil })
	began := time.Now()
	if m := asking(t, silent).Ask(question("a.test.")); got(m) != "SERVFAIL[]" {
		t.Error(m)
	}
	// All waits together; a busy machine adds to each.
	const givesUp = 5 * time.Second
	if tries := silent.asked.Load(); tries == 0 || time.Duration(tries)*patience >= givesUp {
		t.Errorf("the silent server was asked %d times, and waited for %v each time", tries, patience)
	}
	if took := time.Since(began); took > 6*givesUp {
		t.Errorf("it took %v", took)
	}
}

func TestAnswersAreRemembered(t *testing.T) {
	server := serve(t, func(_ string, q *dns.Msg) *dns.Msg {
		switch name := q.Question[0].Name; {
		case strings.HasPrefix(name, "none."):
			m := rcode(q, dns.RcodeNameError)
			soa, err := dns.NewRR("test. 60 IN SOA ns.test. root.test. 1 1 1 1 60")
			if err != nil {
				panic(err)
			}
			m.Ns = []dns.RR{soa}
			return m
		case strings.HasPrefix(name, "now."):
			return record(q, "0 IN A 192.0.2.1")
		default:
			return record(q, "60 IN A 192.0.2.1")
		}
	})
	f := asking(t, server)
	for _, tc := range []struct {
		q     Question
		asked int32
	}{
		{question("a.test."), 1},
		{question("a.test."), 1},
		{Question{Name: "a.test.", Type: dns.TypeA, DO: true}, 2}, // with signatures it is another answer
		{Question{Name: "a.test.", Type: dns.TypeAAAA}, 3},
		{question("none.test."), 4},
		{question("none.test."), 4},
		{question("now.test."), 5},
		{question("now.test."), 6},
	} {
		m := f.Ask(tc.q)
		m.Answer = nil // the caller may change it
		if n := server.asked.Load(); n != tc.asked {
			t.Errorf("after %v the server was asked %d times, not %d", tc.q, n, tc.asked)
		}
	}
	if m := f.Cached(question("a.test.")); m == nil || len(m.Answer) != 1 {
		t.Errorf("what a caller did with an answer is remembered: %v", m)
	}
}

// Equal questions at the same time are asked once. Each caller has an answer of its own.
func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	const callers = 50
	var waiting sync.WaitGroup
	waiting.Add(callers)
	server := serve(t, func(_ string, q *dns.Msg) *dns.Msg {
		if q.Question[0].Qtype != dns.TypeHINFO {
			waiting.Wait() // all callers are on their way
		}
		return record(q, "60 IN A 192.0.2.1")
	})
	f := asking(t, server)
	answers := make(chan *dns.Msg, callers)
	for range callers {
		go func() {
			waiting.Done()
			m := f.Ask(question("a.test."))
			m.Answer[0].Header().Name = "mine." // the race detector sees whose it is
			answers <- m
		}()
	}
	seen := map[*dns.Msg]bool{}
	for range callers {
		seen[<-answers] = true
	}
	if n := server.asked.Load(); n != 1 || len(seen) != callers {
		t.Errorf("%d callers: asked %d times, %d answers", callers, n, len(seen))
	}
}

func TestStubDomains(t *testing.T) {
	answer := func(ip string) *upstream {
		return serve(t, func(_ string, q *dns.Msg) *dns.Msg { return record(q, "60 IN A "+ip) })
	}
	corp, lab := answer("192.0.2.2"), answer("192.0.2.3")
	f := New(Config{Stubs: map[string][]netip.AddrPort{"corp.example.": addrs(corp), "lab.corp.example.": addrs(lab)}})
	defer f.Close()
	for name, want := range map[string]string{
		"corp.example.": "192.0.2.2", "a.corp.example.": "192.0.2.2", "a.lab.corp.example.": "192.0.2.3",
	} {
		if m := f.Ask(question(name)); !strings.Contains(got(m), want) {
			t.Errorf("%s: %s, not %s", name, got(m), want)
		}
	}
	for _, name := range []string{"example.", "xcorp.example."} { // the node's servers, of which there are none
		if m := f.Ask(question(name)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %s", name, got(m))
		}
	}
}

// What may be under way is bounded, and no client can have all of it.
func TestQuestionsUnderWayAreBounded(t *testing.T) {
	f := New(Config{})
	defer f.Close()
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}) }
	var releases []func()
	flood := func(i int) (admitted int) {
		for {
			release, ok := f.Admit(client(i))
			if !ok {
				return admitted
			}
			releases = append(releases, release)
			admitted++
		}
	}
	if n := flood(0); n != maxUnderWay/2 {
		t.Errorf("a client alone has %d questions under way, not half of all", n)
	}
	// Each further one that floods leaves as much to others as it has.
	for i := 1; maxUnderWay>>i > 1; i++ {
		if n := flood(i); n != maxUnderWay>>(i+1) || f.underWay != maxUnderWay-n {
			t.Errorf("client %d has %d questions under way; %d are free", i, n, maxUnderWay-f.underWay)
		}
	}
	if n := flood(98); n != 1 {
		t.Errorf("%d questions took the last free place, want 1", n)
	}
	if n := flood(99); n != 0 || f.underWay != maxUnderWay {
		t.Errorf("%d more than all may be under way", n)
	}
	for _, release := range releases {
		release()
	}
	if len(f.ofClient) > 0 || f.underWay != 0 {
		t.Errorf("%d questions of %d clients are left", f.underWay, len(f.ofClient))
	}
}

// A server that asks us is left out, and asked again when it has stopped. Other servers are not.
func TestServersThatAskUs(t *testing.T) {
	var asker atomic.Pointer[Forwarder]
	var loops atomic.Bool
	loops.Store(true)
	came := make(chan bool, 16)
	looping := serve(t, func(_ string, q *dns.Msg) *dns.Msg {
		if name := strings.ToLower(q.Question[0].Name); q.Question[0].Qtype == dns.TypeHINFO {
			came <- loops.Load() && asker.Load().Returned(Question{Name: name, Type: dns.TypeHINFO})
			return rcode(q, dns.RcodeRefused)
		}
		return record(q, "60 IN A 192.0.2.66")
	})
	f := asking(t, looping)
	asker.Store(f)
	f.Ask(question("a.test.")) // has it tested
	if !<-came {
		t.Fatal("the question that came back is not recognized")
	}
	if f.Returned(Question{Name: "a.test.", Type: dns.TypeHINFO}) || f.Returned(question("a.test.")) {
		t.Error("other questions are taken for our own")
	}
	f.work.Wait()
	if m := f.Ask(question("b.test.")); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("a server that asks us is asked: %s", got(m))
	}
	loops.Store(false)
	s := f.stubs["test."][0]
	s.loop.next.Store(1) // it is due
	f.Ask(question("c.test."))
	if <-came {
		t.Fatal("the test shows nothing")
	}
	f.work.Wait()
	if m := f.Ask(question("d.test.")); m.Rcode != dns.RcodeSuccess {
		t.Errorf("a server that has stopped to ask us is not asked: %s", got(m))
	}
}

// Regression: a server that did not answer when it was tested was never tested again, although it
// may ask us from then on.
func TestServersThatAskUsLater(t *testing.T) {
	var asker atomic.Pointer[Forwarder]
	var up atomic.Bool
	looping := serve(t, func(_ string, q *dns.Msg) *dns.Msg {
		if q.Question[0].Qtype != dns.TypeHINFO || !up.Load() {
			return nil
		}
		asker.Load().Returned(Question{Name: strings.ToLower(q.Question[0].Name), Type: dns.TypeHINFO})
		return rcode(q, dns.RcodeRefused)
	})
	f := asking(t, looping)
	asker.Store(f)
	s := f.stubs["test."][0]
	for _, loops := range []bool{false, true} {
		up.Store(loops)
		s.loop.next.Store(min(s.loop.next.Load(), 1)) // it is due, if it ever is
		f.looping(s)
		f.work.Wait()
		if got := f.looping(s); got != loops {
			t.Errorf("the server asks us: %t, found: %t", loops, got)
		}
	}
}

// Regression: the server of a stub domain that asks us for all other names, as one in a pod does,
// was taken for one that asks us for its own, and was not asked any more.
func TestServersOfAStubThatAskUsForOtherNames(t *testing.T) {
	var asker atomic.Pointer[Forwarder]
	tested := make(chan string, 16)
	corp := serve(t, func(_ string, q *dns.Msg) *dns.Msg {
		name := strings.ToLower(q.Question[0].Name)
		switch {
		case q.Question[0].Qtype != dns.TypeHINFO:
			return record(q, "60 IN A 192.0.2.7")
		case !strings.HasSuffix(name, ".corp.example."):
			asker.Load().Returned(Question{Name: name, Type: dns.TypeHINFO})
		}
		tested <- name
		return rcode(q, dns.RcodeNameError)
	})
	f := New(Config{Stubs: map[string][]netip.AddrPort{"corp.example.": addrs(corp)}})
	defer f.Close()
	asker.Store(f)
	f.Ask(question("a.corp.example."))
	<-tested
	f.work.Wait()
	if m := f.Ask(question("b.corp.example.")); !strings.Contains(got(m), "192.0.2.7") {
		t.Errorf("after the test: %s", got(m))
	}
}

// Regression: an answer in a datagram that was cut in the middle of a record counted as none: the
// server was not asked over TCP, and was avoided.
func TestDatagramsThatAreCut(t *testing.T) {
	for _, flagged := range []bool{true, false} {
		l, conn := bothAtOnePort(t)
		answer := func(q *dns.Msg) *dns.Msg {
			m := record(q, "60 IN A 192.0.2.1")
			for i := range 100 {
				rr, err := dns.NewRR(fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Question[0].Name, i+2))
				if err != nil {
					t.Error(err)
				}
				m.Answer = append(m.Answer, rr)
			}
			return m
		}
		tcp := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(answer(q)) })}
		udp := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			m := answer(q)
			m.Truncated = flagged
			data, err := m.Pack()
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(data[:600])
		})}
		var done sync.WaitGroup
		for _, s := range []*dns.Server{tcp, udp} {
			done.Go(func() { _ = s.ActivateAndServe() })
		}
		f := New(Config{Stubs: map[string][]netip.AddrPort{"test.": {l.Addr().(*net.TCPAddr).AddrPort()}}})
		if m := f.Ask(question("a.test.")); len(m.Answer) != 101 || m.Truncated {
			t.Errorf("flagged %t: %d records, truncated %t, %s", flagged, len(m.Answer), m.Truncated, dns.RcodeToString[m.Rcode])
		}
		if f.stubs["test."][0].bad() {
			t.Errorf("flagged %t: the server counts as one that does not answer", flagged)
		}
		f.Close()
		l.Close()
		conn.Close()
		done.Wait()
	}
}

// The node's configuration is followed. What we are ourselves is not asked.
func TestConfigurationIsFollowed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(content string) {
		t.Helper()
		next := file + ".next"
		if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, file); err != nil {
			t.Fatal(err)
		}
	}
	n := nodeServers{file: file, log: slog.New(slog.DiscardHandler), own: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}
	now := time.Now()
	ask := func() (all []string) {
		for _, s := range n.get(now) {
			all = append(all, s.addr.String())
		}
		return all
	}
	if got := ask(); got != nil {
		t.Errorf("without a file: %v", got)
	}
	write("nameserver 192.0.2.1\nnameserver 10.96.0.10\n")
	if got := ask(); got != nil {
		t.Errorf("the file is read at each question: %v", got)
	}
	now = now.Add(reread)
	if got := ask(); !slices.Equal(got, []string{"192.0.2.1:53"}) {
		t.Errorf("the file says otherwise than %v", got)
	}
	kept := n.servers[0]
	write("nameserver 192.0.2.2\nnameserver 192.0.2.1\n")
	now = now.Add(reread)
	if got := ask(); !slices.Equal(got, []string{"192.0.2.2:53", "192.0.2.1:53"}) || n.servers[1] != kept {
		t.Errorf("the file was changed, and says otherwise than %v", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	now = now.Add(reread)
	if got := ask(); len(got) != 2 {
		t.Errorf("while there is no file, there are no servers but %v", got)
	}
}

// TTLs count down, and what has expired is gone.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Config{})
		defer f.Close()
		q := new(dns.Msg)
		q.SetQuestion("a.test.", dns.TypeA)
		f.cache.put(question("a.test."), record(q, "60 IN A 192.0.2.1"), time.Now())
		f.cache.put(question("b.test."), record(q, "1000000 IN A 192.0.2.1"), time.Now())
		time.Sleep(59*time.Second + 900*time.Millisecond)
		if m := f.Cached(question("a.test.")); m == nil || m.Answer[0].Header().Ttl != 1 {
			t.Errorf("after 59 seconds: %v", m)
		}
		time.Sleep(100 * time.Millisecond)
		if m := f.Cached(question("a.test.")); m != nil {
			t.Errorf("after 60 seconds: %v", m)
		}
		time.Sleep(maxTTL)
		if m := f.Cached(question("b.test.")); m != nil {
			t.Errorf("after more than an hour: %v", m)
		}
	})
}

// What is remembered is bounded in bytes, whatever is asked for. A flood of names that do not exist
// does not push out the answers that others use.
func TestMemoryIsBounded(t *testing.T) {
	f := New(Config{})
	defer f.Close()
	now := time.Now()
	q := new(dns.Msg)
	q.SetQuestion("a.test.", dns.TypeA)
	f.cache.put(question("a.test."), record(q, "60 IN A 192.0.2.1"), now)
	none := rcode(q, dns.RcodeNameError)
	soa, err := dns.NewRR("test. 60 IN SOA ns.test. root.test. 1 1 1 1 60")
	if err != nil {
		t.Fatal(err)
	}
	none.Ns = []dns.RR{soa}
	for i := range 20000 {
		f.cache.put(question(fmt.Sprintf("%d.%s.test.", i, strings.Repeat("x", i%60+1))), none, now)
	}
	if used := f.cache.missing.used; used > missingBytes || used < missingBytes/2 {
		t.Errorf("%d bytes are used of %d", used, missingBytes)
	}
	if f.Cached(question("a.test.")) == nil {
		t.Error("an answer is forgotten for names that do not exist")
	}
	for i := range 20000 {
		f.cache.put(question(fmt.Sprintf("%d.test.", i)), record(q, "60 IN A 192.0.2.1"), now)
	}
	if used := f.cache.found.used; used > foundBytes || used < foundBytes/2 || len(f.cache.found.entries) != f.cache.found.order.Len() {
		t.Errorf("%d bytes are used of %d", used, foundBytes)
	}
	// An answer that is too long is not remembered at all.
	long := record(q, "60 IN A 192.0.2.1")
	for range maxKept / 16 {
		long.Answer = append(long.Answer, long.Answer[0])
	}
	f.cache.put(question("long.test."), long, now)
	if f.Cached(question("long.test.")) != nil {
		t.Error("an answer of any length is remembered")
	}
}
