package upgrade

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/proxy"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// patience bounds what a test waits for; it is never the time that a test takes.
const patience = time.Minute

const switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"

// answers is a connection that the given bytes come from, in reads of at most step bytes.
type answers struct {
	net.Conn
	left io.Reader
	step int
}

func (a *answers) Read(b []byte) (int, error) { return a.left.Read(b[:min(len(b), a.step)]) }

func (a *answers) SetDeadline(time.Time) error { return nil }

// The limit ends where net/http sees the header end, and not before.
func TestLimitIsForTheHeader(t *testing.T) {
	long := strings.Repeat("x", 2*headerLimit)
	field := "A: " + strings.Repeat("a", headerLimit/2) + "\r\n"
	for name, c := range map[string]struct {
		answer string
		ok     bool
	}{
		"switched":               {switching + "\r\n" + long, true},
		"newlines only":          {strings.ReplaceAll(switching, "\r", "") + "\n" + long, true},
		"no reason":              {"HTTP/1.1 101\r\n\r\n" + long, true},
		"long header":            {switching + field + "\r\n" + long, true},
		"folded field":           {switching + "A: a\r\n \r\n\tb\r\n\r\n" + long, true},
		"too long":               {switching + field + field + "\r\n", false},
		"one field":              {switching + "A: " + long, false},
		"a line":                 {long, false},
		"spaces":                 {"HTTP/1.1 " + strings.Repeat(" ", 2*headerLimit) + "101\r\n\r\n", false},
		"refused":                {"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", true},
		"refused at length":      {"HTTP/1.1 403 Forbidden\r\n\r\n" + long, false},
		"not switched":           {"HTTP/1.1 200 101\r\n\r\n" + long, false},
		"empty lines":            {strings.Repeat("\r\n", headerLimit), false},
		"carriage returns alone": {switching + strings.Repeat("\r", 2*headerLimit), false},
	} {
		for _, step := range []int{1, 7, 4096} {
			t.Run(fmt.Sprintf("%s/%d", name, step), func(t *testing.T) {
				limited := func() net.Conn {
					return limit(context.Background(), &answers{left: strings.NewReader(c.answer), step: step})
				}
				got, err := io.ReadAll(limited())
				if c.ok && (err != nil || string(got) != c.answer) {
					t.Errorf("%d of %d bytes, %v", len(got), len(c.answer), err)
				}
				if !c.ok && (err == nil || len(got) > headerLimit) {
					t.Errorf("%d bytes were read, %v", len(got), err)
				}
				resp, err := http.ReadResponse(bufio.NewReader(limited()), nil)
				if c.ok && err != nil {
					t.Errorf("net/http: %v", err)
				}
				if err == nil {
					resp.Body.Close()
				}
			})
		}
	}
}

// counted is a connection that counts what is read from it.
type counted struct {
	net.Conn
	read *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// backend is a server that answers each request with a header of the given length.
type backend struct {
	location  *url.URL
	transport *http.Transport
	read      atomic.Int64 // from all its connections
}

func newBackend(t *testing.T, secure bool, length int) *backend {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		out := bufio.NewWriterSize(conn, 64<<10)
		_, _ = out.WriteString(switching)
		for sent := 0; sent < length && err == nil; sent += 1 << 10 {
			_, err = out.WriteString("A: " + strings.Repeat("a", 1<<10-5) + "\r\n")
		}
		_, _ = out.WriteString("\r\nahoy\n")
		if out.Flush() == nil {
			_, _ = io.Copy(conn, conn)
		}
	}))
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	b := &backend{transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	b.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return counted{conn, &b.read}, err
	}
	var err error
	if b.location, err = url.Parse(server.URL); err != nil {
		t.Fatal(err)
	}
	return b
}

// failing answers a request that its server did not.
type failing struct{}

func (failing) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusBadGateway)
}

// ask sends a request for an upgraded connection by way of handler.
func ask(t *testing.T, handler http.Handler) (*http.Response, *bufio.Reader, net.Conn) {
	t.Helper()
	front := httptest.NewServer(handler)
	t.Cleanup(front.Close)
	conn, err := net.Dial("tcp", front.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	answer := bufio.NewReader(conn)
	resp, err := http.ReadResponse(answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp, answer, conn
}

// attackLength is how long the attacker's headers are. They have an end for the control only.
const attackLength = 16 << 20

// A pod that answers the request for an upgraded connection with an endless header costs little.
func TestEndlessHeader(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls %t", secure), func(t *testing.T) {
			b := newBackend(t, secure, attackLength)
			handler := proxy.NewUpgradeAwareHandler(b.location, b.transport, true, false, failing{})
			Limit(handler)
			resp, _, _ := ask(t, handler)
			said, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusBadGateway || !bytes.Contains(said, []byte("longer than 1048576 bytes")) {
				t.Errorf("%d %s", resp.StatusCode, said)
			}
			if read := b.read.Load(); read < headerLimit || read > headerLimit+headerLimit/8 { // TLS adds something
				t.Errorf("%d bytes were read", read)
			}
		})
		t.Run(fmt.Sprintf("control, tls %t", secure), func(t *testing.T) {
			b := newBackend(t, secure, attackLength)
			resp, _, _ := ask(t, proxy.NewUpgradeAwareHandler(b.location, b.transport, true, false, failing{}))
			if read := b.read.Load(); resp.StatusCode != http.StatusSwitchingProtocols || read < attackLength {
				t.Errorf("upstream reads no endless headers any more: %d, %d bytes were read", resp.StatusCode, read)
			}
		})
	}
}

// A pod that does not read the request, does not answer it, or not to the answer's end, holds the
// API server up for a limited time.
func TestAnswerThatDoesNotCome(t *testing.T) {
	pods := map[string]func(net.Conn){
		"reads nothing": func(net.Conn) {},
		"says nothing":  func(conn net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(conn)) },
		"trickles": func(conn net.Conn) {
			_, err := http.ReadRequest(bufio.NewReader(conn))
			for next := switching; err == nil; next = "A: a\r\n" {
				_, err = io.WriteString(conn, next)
				time.Sleep(time.Second)
			}
		},
	}
	for name, c := range map[string]struct {
		limit func(*proxy.UpgradeAwareHandler)
		ends  bool
	}{"limit": {Limit, true}, "control": {func(*proxy.UpgradeAwareHandler) {}, false}} {
		for does, pod := range pods {
			t.Run(name+"/"+does, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					answer, took := request(t.Context(), c.limit, pod)
					told := strings.Contains(answer.Body.String(), "no answer to the request for an upgraded connection within 1m0s")
					if c.ends && (took != answerLimit || answer.Code != http.StatusBadGateway || !told) {
						t.Errorf("%d %q after %v", answer.Code, answer.Body, took)
					}
					if !c.ends && took != 10*answerLimit {
						t.Errorf("upstream does not wait any more: %q after %v", answer.Body, took)
					}
				})
			})
		}
	}
}

// request sends a request for an upgraded connection to a pod. It returns the answer to the client,
// and how long it took, at most ten times the limit. It runs in a bubble of synctest.
func request(ctx context.Context, limit func(*proxy.UpgradeAwareHandler), pod func(net.Conn)) (*httptest.ResponseRecorder, time.Duration) {
	near, far := net.Pipe()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { pod(far) })
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }}
	location := &url.URL{Scheme: "http", Host: "pod", Path: "/"}
	handler := proxy.NewUpgradeAwareHandler(location, transport, true, true, failing{})
	limit(handler)
	req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "SPDY/3.1")
	answer, ended, began := httptest.NewRecorder(), make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		handler.ServeHTTP(answer, req)
	}()
	select {
	case <-ended:
	case <-time.After(10 * answerLimit):
	}
	took := time.Since(began)
	far.Close()
	<-ended
	return answer, took
}

// A pod that does not answer does not hold a request when its client has gone.
func TestRequestEndsWithItsClient(t *testing.T) {
	const stays = 5 * time.Second
	for name, c := range map[string]struct {
		limit func(*proxy.UpgradeAwareHandler)
		took  time.Duration
	}{"limit": {Limit, stays}, "control": {func(*proxy.UpgradeAwareHandler) {}, 10 * answerLimit}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), stays)
				defer cancel()
				_, took := request(ctx, c.limit, func(conn net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(conn)) })
				if took != c.took {
					t.Errorf("it ended after %v", took)
				}
			})
		})
	}
}

// A connection may rest once the header has ended.
func TestUpgradedConnectionsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() {
			defer far.Close()
			_, _ = io.WriteString(far, switching+"\r\n")
			time.Sleep(10 * answerLimit)
			_, _ = io.WriteString(far, "ahoy")
		}()
		if got, err := io.ReadAll(limit(t.Context(), near)); err != nil || string(got) != switching+"\r\nahoy" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// What follows the header is not limited, and other requests take the handler's transport.
func TestUpgradedConnectionsGoOn(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls %t", secure), func(t *testing.T) {
			b := newBackend(t, secure, headerLimit/2)
			handler := proxy.NewUpgradeAwareHandler(b.location, b.transport, false, false, failing{})
			Limit(handler)
			resp, answer, conn := ask(t, handler)
			if line, err := answer.ReadString('\n'); resp.StatusCode != http.StatusSwitchingProtocols || line != "ahoy\n" {
				t.Fatalf("%d, %q, %v", resp.StatusCode, line, err)
			}
			block := bytes.Repeat([]byte("b"), 64<<10)
			for range 3 * headerLimit / len(block) {
				_, _ = conn.Write(block)
				got := make([]byte, len(block))
				if _, err := io.ReadFull(answer, got); err != nil || !bytes.Equal(got, block) {
					t.Fatalf("after the header: %v", err)
				}
			}
		})
	}
	for name, start := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		t.Run(name, func(t *testing.T) {
			body := strings.Repeat("x", 2*headerLimit)
			server := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
			defer server.Close()
			location, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			location.Path = "/"
			handler := proxy.NewUpgradeAwareHandler(location, server.Client().Transport, true, false, failing{})
			Limit(handler)
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
			if answer.Code != http.StatusOK || answer.Body.String() != body {
				t.Errorf("%d, %d bytes", answer.Code, answer.Body.Len())
			}
		})
	}
}

// The port and the scheme that upstream dials are those of the location.
func TestWhatIsDialled(t *testing.T) {
	for location, want := range map[string]string{
		"http://pod": "pod:80", "https://pod": "pod:443", "https://pod:8443": "pod:8443",
		"http://[::1]": "[::1]:80", "https://[::1]": "[::1]:443",
	} {
		var dialled string
		transport := &http.Transport{DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = address
			return nil, io.ErrUnexpectedEOF
		}}
		at, err := url.Parse(location)
		if err != nil {
			t.Fatal(err)
		}
		handler := proxy.NewUpgradeAwareHandler(at, transport, true, false, failing{})
		Limit(handler)
		ask(t, handler)
		if dialled != want {
			t.Errorf("%s: %q instead of %q", location, dialled, want)
		}
	}
}

// getter says how to reach one kubelet.
type getter kubeletclient.ConnectionInfo

func (g *getter) GetConnectionInfo(context.Context, types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	return (*kubeletclient.ConnectionInfo)(g), nil
}

// For clients that speak WebSocket, exec and attach do not take the handler of the others, but a
// SPDY client.
func TestEndlessHeaderOfAKubelet(t *testing.T) {
	b := newBackend(t, true, attackLength)
	own := &getter{Scheme: "https", Hostname: b.location.Hostname(), Port: b.location.Port(), Transport: b.transport}
	call := func(g kubeletclient.ConnectionInfoGetter) error {
		info, err := g.GetConnectionInfo(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		client, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{UpgradeTransport: info.Transport})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, info.Scheme+"://"+net.JoinHostPort(info.Hostname, info.Port), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := call(Kubelets(own)); err == nil || !strings.Contains(err.Error(), "longer than 1048576 bytes") {
		t.Error(err)
	}
	if read := b.read.Load(); read < headerLimit || read > headerLimit+headerLimit/8 {
		t.Errorf("%d bytes were read", read)
	}
	if own.Scheme != "https" || own.Transport != b.transport {
		t.Errorf("what other requests to the kubelet take was changed: %+v", own)
	}
	b.read.Store(0)
	if err := call(own); err != nil || b.read.Load() < attackLength {
		t.Errorf("upstream reads no endless headers any more: %v, %d bytes were read", err, b.read.Load())
	}
}
