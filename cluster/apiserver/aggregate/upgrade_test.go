package aggregate

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// patience bounds what a test waits for; it is never the time that a test takes.
const patience = time.Minute

// upgrades is an API server that passes on requests for upgraded connections.
type upgrades struct {
	arrived chan *bufio.ReadWriter // what the server behind it got
	backend chan net.Conn
	ended   chan error // how each request ended for the API server
	cancel  chan context.CancelFunc
	client  net.Conn
	answer  *bufio.Reader
}

// startUpgrade sends a request for an upgraded connection by way of an Aggregator to a server that
// takes it and does not answer.
func startUpgrade(t *testing.T) *upgrades {
	t.Helper()
	u := &upgrades{
		arrived: make(chan *bufio.ReadWriter, 1), backend: make(chan net.Conn, 1),
		ended: make(chan error, 1), cancel: make(chan context.CancelFunc, 1),
	}
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		u.backend <- conn
		u.arrived <- buffered
	}))
	t.Cleanup(backend.Close)
	location, err := url.Parse(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := &Aggregator{options: Options{Log: slog.New(slog.DiscardHandler)}}
	r := &route{
		spec: apiregistrationv1.APIServiceSpec{
			Group: "g", Version: "v1",
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "g"},
		},
		transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: (&net.Dialer{}).DialContext,
		},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		u.cancel <- cancel
		a.upgrade(w, req.WithContext(ctx), location, r)
		u.ended <- nil
	}))
	t.Cleanup(front.Close)
	if u.client, err = net.Dial("tcp", front.Listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.client.Close() })
	_ = u.client.SetDeadline(time.Now().Add(patience))
	u.answer = bufio.NewReader(u.client)
	fmt.Fprintf(u.client, "GET /apis/g/v1/ships/a/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	return u
}

// closed checks that the connection to the server behind has been closed.
func (u *upgrades) closed(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, <-u.arrived); err != nil {
		t.Errorf("the connection to the server is still open: %v", err)
	}
	(<-u.backend).Close()
	<-u.ended
}

// A server that takes a request for an upgraded connection and never answers does not hold it when
// the client has gone.
func TestUpgradesEndWithTheirClients(t *testing.T) {
	u := startUpgrade(t)
	buffered := <-u.arrived // the server has it
	u.arrived <- buffered
	u.client.Close()
	u.closed(t)
}

// The end of the request does not end a connection that has been upgraded.
func TestUpgradesGoOn(t *testing.T) {
	u := startUpgrade(t)
	theirs, conn := <-u.arrived, <-u.backend
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	resp, err := http.ReadResponse(u.answer, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	(<-u.cancel)()
	for range 100 {
		fmt.Fprintln(u.client, "ahoy")
		if line, err := theirs.ReadString('\n'); line != "ahoy\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	u.client.Close()
	u.arrived <- theirs
	u.backend <- conn
	u.closed(t)
}

// A server that answers with an endless header does not take the API server's memory.
func TestUpgradesWithAnEndlessHeader(t *testing.T) {
	u := startUpgrade(t)
	conn := <-u.backend
	defer conn.Close()
	const attack = 64 << 20 // it has an end for the test only
	sent := make(chan int, 1)
	go func() {
		n, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n")
		for block := strings.Repeat("A: "+strings.Repeat("a", 1<<10-5)+"\r\n", 64); err == nil && n < attack; n += len(block) {
			_, err = io.WriteString(conn, block)
		}
		_, _ = io.WriteString(conn, "\r\n")
		sent <- n
	}()
	resp, err := http.ReadResponse(u.answer, nil)
	if err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(said), "longer than 1048576 bytes") {
		t.Errorf("%d %s", resp.StatusCode, said)
	}
	if n := <-sent; n > attack/2 { // the kernel's buffers take some
		t.Errorf("the API server took %d bytes", n)
	}
	u.client.Close()
	<-u.ended
}
