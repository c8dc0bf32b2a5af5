package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/dns/forward"
)

// listening answers at a port of loopback.
func listening(t testing.TB, h *handler) netip.AddrPort {
	t.Helper()
	s := &sockets{}
	for {
		err := s.listen(netip.MustParseAddrPort("127.0.0.1:0"))
		if err == nil {
			break
		}
		s.close()
		if !errors.Is(err, unix.EADDRINUSE) { // the port is free for one protocol only
			t.Fatal(err)
		}
		s = &sockets{}
	}
	serveAt(t, h, s)
	return s.udp[0].LocalAddr().(*net.UDPAddr).AddrPort()
}

// serveAt answers at the sockets of one address until the test ends.
func serveAt(t testing.TB, h *handler, s *sockets) {
	ended := make(chan error, 2)
	go func() { ended <- h.serveUDP(s.udp[0]) }()
	go func() { ended <- newTCPServer(h, s.tcp[0]).serve() }()
	t.Cleanup(func() {
		s.close()
		h.forward.Stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// upstream starts a name server that answers each question with f.
func upstream(t testing.TB, f func(q *dns.Msg) *dns.Msg) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if m := f(q); m != nil {
			_ = w.WriteMsg(m)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.ActivateAndServe()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func example(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	rr, err := dns.NewRR(strings.ToLower(q.Question[0].Name) + " 60 IN A 192.0.2.1")
	if err != nil {
		panic(err)
	}
	m.Answer = []dns.RR{rr}
	return m
}

func stub(domain string, server netip.AddrPort) forward.Config {
	return forward.Config{Stubs: map[string][]netip.AddrPort{domain: {server}}}
}

// Go's own resolver, and the C library's if there is one, find names by UDP and TCP.
func TestResolversFindNames(t *testing.T) {
	at := listening(t, newHandler(t, stub("example.", upstream(t, example)),
		append(cluster(), externalService("default", "out", "www.example"))...))
	for _, network := range []string{"udp", "tcp"} {
		r := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at.String())
		}}
		for name, want := range map[string]string{
			"web.default" + svc: "[10.96.0.20]", "dual.default" + svc: "[10.96.0.21 fd00:96::21]", "www.example.": "[192.0.2.1]",
			"out.default" + svc: "[192.0.2.1]",
		} {
			if got, err := r.LookupHost(t.Context(), name); err != nil || fmt.Sprint(got) != want {
				t.Errorf("%s: %s is %v, %v, not %s", network, name, got, err, want)
			}
		}
		if got, err := r.LookupCNAME(t.Context(), "out.default"+svc); err != nil || got != "www.example." {
			t.Errorf("%s: CNAME %s, %v", network, got, err)
		}
		_, err := r.LookupHost(t.Context(), "none.default"+svc)
		if e, ok := err.(*net.DNSError); !ok || !e.IsNotFound {
			t.Errorf("%s: a name that there is not: %v", network, err)
		}
	}
	if _, err := exec.LookPath("dig"); err == nil {
		out, err := exec.Command("dig", "+short", "-p", fmt.Sprint(at.Port()), "@127.0.0.1", "SRV", "_http._tcp.web.default"+svc).CombinedOutput()
		if err != nil || string(out) != "0 100 80 web.default"+svc+"\n" {
			t.Errorf("dig: %s, %v", out, err)
		}
	}
}

// Names come back as they were asked, also those of others.
func TestCaseOfQuestionsIsKept(t *testing.T) {
	h := newHandler(t, stub("example.", upstream(t, example)))
	for range 2 { // asked, and remembered
		m := h.query(t, sender{pod, true}, "wWw.eXample.", dns.TypeA)
		if m.Question[0].Name != "wWw.eXample." || len(m.Answer) != 1 || m.Answer[0].Header().Name != "wWw.eXample." {
			t.Errorf("%v", m)
		}
	}
}

// Names of the cluster are found in capitals, too, and come back as they were asked.
func TestClusterNamesInCapitals(t *testing.T) {
	h := newHandler(t, forward.Config{}, cluster()...)
	for asked, kind := range map[string]uint16{
		"WEB.Default.SVC.Cluster.Local.": dns.TypeA, "_HTTP._TCP.wEb.dEfault.svc.cluster.LOCAL.": dns.TypeSRV,
		"DNS-Version.Cluster.Local.": dns.TypeTXT,
	} {
		lower := h.query(t, sender{pod, true}, strings.ToLower(asked), kind)
		m := h.query(t, sender{pod, true}, asked, kind)
		if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 || len(m.Answer) != len(lower.Answer) || m.Question[0].Name != asked ||
			m.Answer[0].Header().Name != asked {
			t.Errorf("%s: %v\nand in small letters: %v", asked, m, lower)
		}
	}
	if m := h.query(t, sender{pod, true}, "WEBB.Default.SVC.Cluster.Local.", dns.TypeA); m.Rcode != dns.RcodeNameError {
		t.Errorf("a name that does not exist: %v", m)
	}
}

// Connections that send nothing, or not all, are closed, and no client can have all of them.
func TestConnectionsAreBounded(t *testing.T) {
	at := listening(t, newHandler(t, forward.Config{}, cluster()...))
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	query := ask(t, "web.default"+svc, dns.TypeA)
	query = append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)
	answered := func(c net.Conn) bool {
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := c.Write(query); err != nil {
			return false
		}
		_, err := io.ReadFull(c, make([]byte, headerSize))
		return err == nil
	}
	for i := range maxConnsOfClient {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		if !answered(c) {
			t.Fatalf("connection %d is not answered", i)
		}
	}
	further, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	open = append(open, further)
	if answered(further) {
		t.Error("a client may have any number of connections")
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := other.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	open = append(open, c)
	if !answered(c) {
		t.Error("another client is not answered")
	}
	// A query that is too long ends its connection at once.
	for name, bytes := range map[string][]byte{"a long query": {0xff, 0xff}, "an empty query": {0, 0}, "a short query": {0, 11}} {
		c, err := other.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		_, err = c.Write(bytes)
		if n, e := c.Read(make([]byte, 1)); err != nil || n > 0 || os.IsTimeout(e) || e == nil {
			t.Errorf("%s: %v, %v", name, err, e)
		}
	}
}

// A connection that waits too long for its next query, or for the rest of one, ends.
func TestSilentConnectionsEnd(t *testing.T) {
	query := ask(t, "web.default"+svc, dns.TypeA)
	for name, tc := range map[string]struct {
		sent  []byte
		reply bool
		after time.Duration
	}{
		"nothing":                            {nil, false, idle},
		"half a length":                      {[]byte{0}, false, idle},
		"a part of a query":                  {append([]byte{0, byte(len(query))}, query[:20]...), false, slow},
		"one query":                          {append([]byte{0, byte(len(query))}, query...), true, idle},
		"one query whose reply is not taken": {append([]byte{0, byte(len(query))}, query...), false, slow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTCPServer(newHandler(t, forward.Config{}, cluster()...), nil)
				ours, theirs := net.Pipe()
				defer ours.Close()
				defer theirs.Close()
				began, ended := time.Now(), make(chan time.Time, 1)
				go func() {
					s.answer(ours, pod)
					ended <- time.Now()
				}()
				if _, err := theirs.Write(tc.sent); err != nil {
					t.Error(err)
				}
				if tc.reply {
					length := make([]byte, 2)
					_, err := io.ReadFull(theirs, length)
					if err == nil {
						_, err = io.ReadFull(theirs, make([]byte, binary.BigEndian.Uint16(length)))
					}
					if err != nil {
						t.Error(err)
					}
				}
				if took := (<-ended).Sub(began); took != tc.after {
					t.Errorf("it ends after %v, not %v", took, tc.after)
				}
			})
		})
	}
}

// A process on the node's network, such as a pod's, cannot get a part of the queries by a socket of
// its own at the same port.
func TestNoSocketSharesTheQueries(t *testing.T) {
	shared := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		}), err)
	}}
	// Positive control: a server that shares its port loses queries to any other of its user.
	victim, err := shared.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	thief, err := shared.ListenPacket(t.Context(), "udp", victim.LocalAddr().String())
	if err != nil {
		t.Fatalf("no port can be shared here, the test shows nothing: %v", err)
	}
	thief.Close()

	at := listening(t, newHandler(t, forward.Config{}))
	for _, addr := range []string{at.String(), fmt.Sprintf("0.0.0.0:%d", at.Port())} {
		if c, err := shared.ListenPacket(t.Context(), "udp", addr); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("UDP %s: %v, %v", addr, c, err)
		}
		if l, err := shared.Listen(t.Context(), "tcp", addr); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("TCP %s: %v, %v", addr, l, err)
		}
	}
}

// BenchmarkQueries is what one client at a time waits for.
func BenchmarkQueries(b *testing.B) {
	h := newHandler(b, stub("example.", upstream(b, example)), cluster()...)
	at := listening(b, h)
	for _, name := range []string{"web.default" + svc, "pets.default" + svc, "none.default" + svc, "www.example."} {
		b.Run(name, func(b *testing.B) {
			conn, err := net.Dial("udp", at.String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			p := ask(b, name, dns.TypeA, withEDNS)
			buf := make([]byte, 4096)
			for b.Loop() {
				if _, err := conn.Write(p); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHandle is the work of a query without the kernel's part.
func BenchmarkHandle(b *testing.B) {
	h := newHandler(b, stub("example.", upstream(b, example)), cluster()...)
	for _, name := range []string{"web.default" + svc, "pets.default" + svc, "none.default" + svc, "www.example."} {
		b.Run(name, func(b *testing.B) {
			p := ask(b, name, dns.TypeA, withEDNS)
			h.packet(p, sender{pod, true})
			buf := make([]byte, payload)
			b.ReportAllocs()
			for b.Loop() {
				if reply, _ := h.handle(p, sender{pod, true}, buf); reply == nil {
					b.Fatal("there is no reply")
				}
			}
		})
	}
}
