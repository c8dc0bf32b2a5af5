package etcd

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// attackers is how many connections an attack has, and descriptors how many more files than it
	// has open the process under attack may have.
	attackers   = 3000
	descriptors = 1000
	// targets is the environment of an attacking process: addresses to attack, by commas.
	targets = "CORACLE_TEST_ATTACK"
)

// TestHelperAttacker is a process of its own that opens connections and sends nothing, from 16
// addresses other than its victims'. It goes on until its stdin ends.
func TestHelperAttacker(t *testing.T) {
	victims := os.Getenv(targets)
	if victims == "" {
		return // it is the attacker of the other tests, not a test
	}
	all := strings.Split(victims, ",")
	limitFiles(t, 2*attackers)
	open := make([]net.Conn, attackers)
	another := func(i int) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%16))}, Timeout: time.Second}
		conn, err := d.DialContext(t.Context(), "tcp", all[i%len(all)])
		if err != nil {
			return // the backlog is full: so much the better
		}
		if before := open[i%attackers]; before != nil {
			_ = before.Close()
		}
		open[i%attackers] = conn
	}
	for i := range attackers {
		another(i)
	}
	fmt.Println("attacking")
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	next := time.NewTicker(time.Millisecond)
	for i := attackers; ; i++ {
		select {
		case <-ended:
			return
		case <-next.C:
			another(i)
		}
	}
}

// attack has another process open connections until the test ends, or the function is called.
func attack(t *testing.T, victims ...string) (end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperAttacker$")
	cmd.Env = append(os.Environ(), targets+"="+strings.Join(victims, ","))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = stdin.Close(); _ = cmd.Wait() }
	t.Cleanup(end)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "attacking") {
		t.Fatalf("the attacker says %q, %v", line, err)
	}
	return end
}

// limitFiles sets how many files this process may have open, until the test ends.
func limitFiles(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(n, before.Max), Max: before.Max})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) })
}

func openFiles(t *testing.T) uint64 {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return uint64(len(files))
}

// Regression: connections that send nothing took all descriptors of the process, and its port for
// members closed for good.
func TestMembersUnderAttack(t *testing.T) {
	b := testBundle(t)
	one, two := newTestMember(t, "one", b), newTestMember(t, "two", b)
	host := func(m *testMember) string { return strings.TrimPrefix(m.url, "https://") }
	limitFiles(t, openFiles(t)+descriptors)
	attackUnprotected(t, one)

	if err := (Peers{Name: "one", URL: one.url}).Write(one.dir); err != nil {
		t.Fatal(err)
	}
	one.mustStart(t)
	defer one.Close()
	two.joinTo(t, one)
	defer func() { two.Close() }()
	defer attack(t, host(one), host(two))()

	// A write needs both. Without heartbeats there is an election within a second. (There may be one
	// on a busy machine, too, but not again and again.)
	eventually(t, "the members go on for a second", func() bool {
		term := one.etcd.Server.Term()
		for began := time.Now(); time.Since(began) < 2*peerElection; {
			if one.put(t.Context(), "under-attack") != nil {
				return false
			}
		}
		return one.etcd.Server.Term() == term
	})
	two.Close()
	two.mustStart(t) // all of its connections are new
	two.has(t.Context(), t, "under-attack")
	eventually(t, "the members write", func() bool { return one.put(t.Context(), "together-again") == nil })
}

// attackUnprotected shows that the attack ends the listener of etcd itself.
func attackUnprotected(t *testing.T, m *testMember) {
	t.Helper()
	info := &transport.TLSInfo{CertFile: m.files.Pair, KeyFile: m.files.Pair, TrustedCAFile: m.files.CACert, ClientCertAuth: true}
	l, err := transport.NewListenerWithOpts("127.0.0.1:0", "https", transport.WithTLSInfo(info),
		transport.WithTimeout(rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	defer attack(t, l.Addr().String())()
	select {
	case err := <-ended:
		if !errors.Is(err, unix.EMFILE) {
			t.Errorf("etcd's own listener ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the attack is too weak: etcd's own listener goes on")
	}
}

// pipes is a listener whose connections are in memory, for a clock of the test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// onPipes calls f with a function that connects to a port for members whose certificates it has.
func onPipes(t *testing.T, f func(t *testing.T, p *peerPort, dial func() net.Conn, config *tls.Config)) {
	m := newTestMember(t, "one", testBundle(t))
	info := transport.TLSInfo{
		CertFile: m.files.Pair, KeyFile: m.files.Pair, TrustedCAFile: m.files.CACert, ClientCertAuth: true, ServerName: "127.0.0.1",
	}
	client, err := info.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now() // the test's own clock begins in the year 2000
	client.Time = func() time.Time { return now }
	synctest.Test(t, func(t *testing.T) {
		p, config, err := listenPeers("127.0.0.1:0", &info, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Listener.Close()
		config.Time = client.Time
		conns := make(pipes)
		p.Listener = conns
		server := p.server(http.NotFoundHandler())
		go func() { _ = server.Serve(tls.NewListener(p, config)) }()
		var dialled []net.Conn
		defer func() {
			close(conns)
			for _, conn := range dialled {
				_ = conn.Close()
			}
			synctest.Wait()
			_ = server.Close()
		}()
		f(t, p, func() net.Conn {
			near, far := net.Pipe()
			conns <- far
			dialled = append(dialled, near)
			return near
		}, client)
	})
}

// Regression: each byte gave a connection five seconds more.
func TestSlowConnections(t *testing.T) {
	for name, c := range map[string]struct {
		member bool
		sends  string
	}{
		"handshake": {false, "\x16\x03\x01\x02\x00\x01" + strings.Repeat("\x00", 100)},
		"request":   {true, "GET / HTTP/1.1\r\nSlow: " + strings.Repeat("a", 100)},
	} {
		t.Run(name, func(t *testing.T) {
			onPipes(t, func(t *testing.T, p *peerPort, dial func() net.Conn, config *tls.Config) {
				conn := dial()
				if c.member {
					member := tls.Client(conn, config)
					if err := member.HandshakeContext(t.Context()); err != nil {
						t.Fatal(err)
					}
					conn = member
				}
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				began := time.Now()
				for i := range len(c.sends) {
					if _, err := conn.Write([]byte(c.sends[i : i+1])); err != nil {
						break
					}
					time.Sleep(2 * time.Second) // by the clock of the test
				}
				if took := time.Since(began); took > peerHeaderLimit+2*time.Second {
					t.Errorf("it is closed after %v", took)
				}
				synctest.Wait()
				if len(p.fresh) > 0 || p.all > 0 {
					t.Errorf("%d and %d connections are still counted", len(p.fresh), p.all)
				}
			})
		})
	}
}

func TestLimitsOfConnections(t *testing.T) {
	onPipes(t, func(t *testing.T, p *peerPort, dial func() net.Conn, config *tls.Config) {
		asks := func(conn net.Conn) bool {
			_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: member\r\n\r\n")
			if err == nil {
				_, err = http.ReadResponse(bufio.NewReader(conn), nil)
			}
			return err == nil
		}
		oldest := dial()
		for range newFromAddress {
			dial()
		}
		synctest.Wait()
		if len(p.fresh) != newFromAddress {
			t.Errorf("%d connections have no request", len(p.fresh))
		}
		if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the oldest was not closed: %v", err)
		}
		first := tls.Client(dial(), config)
		for conn, n := first, 1; n <= membersFromAddress; conn, n = tls.Client(dial(), config), n+1 {
			if !asks(conn) {
				t.Fatalf("connection %d of a member is refused", n)
			}
		}
		if asks(tls.Client(dial(), config)) {
			t.Error("one more is not refused")
		}
		_ = first.Close()
		synctest.Wait()
		if !asks(tls.Client(dial(), config)) {
			t.Error("one of a member is refused after another was closed")
		}
	})
	for address, want := range map[string]string{
		"192.0.2.7:1": "192.0.2.7/32", "[::ffff:192.0.2.7]:1": "192.0.2.7/32", "[2001:db8::1:2:3:4]:1": "2001:db8::/64",
		"[fe80::1%lo]:1": "fe80::/64",
	} {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		if got := origin(addr).String(); got != want {
			t.Errorf("%s is counted as %s, want %s", address, got, want)
		}
	}
}
