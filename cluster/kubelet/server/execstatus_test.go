package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	streamcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// mortal is a runtime's streaming server that is killed while a command runs: the kernel closes its
// connections, and nothing more is said on them.
type mortal struct {
	net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func (m *mortal) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.conns = append(m.conns, c)
	}
	return c, err
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		_ = c.Close()
	}
}

// dying is what such a server runs: a command that says something first.
type dying struct {
	*streams
	die func()
}

func (d dying) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan streamcommand.TerminalSize,
) error {
	_, _ = io.WriteString(out, "half")
	if in != nil {
		// The client has it by the time it says so.
		_, _ = io.ReadFull(in, make([]byte, 4))
	}
	d.die()
	return nil
}

// newMortal starts one, by https if start is (*httptest.Server).StartTLS.
func newMortal(t *testing.T, start func(*httptest.Server)) (*streams, *httptest.Server) {
	s := &streams{}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
	m := &mortal{Listener: web.Listener}
	web.Listener = m
	start(web)
	t.Cleanup(web.Close)
	config := streaming.DefaultConfig
	var err error
	if config.BaseURL, err = url.Parse(web.URL); err != nil {
		t.Fatal(err)
	}
	if s.Server, err = streaming.NewServer(config, dying{s, m.die}); err != nil {
		t.Fatal(err)
	}
	return s, web
}

// echo says to its reader what it was written, so that standard input answers output.
type echo struct {
	mu  sync.Mutex
	all bytes.Buffer
	to  io.Writer
}

func (e *echo) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.to.Write(p)
	return e.all.Write(p)
}

// executors are clients of a path of the kubelet's, by protocol.
func executors(t *testing.T, s *Server, path string) map[string]remotecommand.Executor {
	server := httptest.NewTLSServer(s.Handler())
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	target, err := url.Parse(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", target)
	if err != nil {
		t.Fatal(err)
	}
	websocket, err := remotecommand.NewWebSocketExecutor(config, "GET", target.String())
	if err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket v5": websocket}
}

// command runs one whose standard input is what it writes, and returns that.
func command(t *testing.T, executor remotecommand.Executor) (string, error) {
	in, answer := io.Pipe()
	defer answer.Close()
	out := &echo{to: answer}
	err := executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: io.Discard})
	return out.all.String(), err
}

// trust has the certificate of a server verified, if it has one.
func trust(web *httptest.Server) *tls.Config {
	roots := x509.NewCertPool()
	if c := web.Certificate(); c != nil {
		roots.AddCert(c)
	}
	return &tls.Config{RootCAs: roots}
}

// Regression: kubectl exec ended with 0 when the runtime was killed during the command.
func TestTheRuntimesDeathIsAnError(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){"http": (*httptest.Server).Start, "https": (*httptest.Server).StartTLS} {
		t.Run(name, func(t *testing.T) {
			s, _, rt := newServer(t, nil)
			var web *httptest.Server
			rt.streams, web = newMortal(t, start)
			s.streamTLS = trust(web)
			for name, executor := range executors(t, s, "/exec/ns/p/c?command=x&input=1&output=1&error=1") {
				out, err := command(t, executor)
				if err == nil || !strings.Contains(err.Error(), "the container runtime ended the connection before the command did") {
					t.Errorf("%s: %v", name, err)
				}
				if out != "half" {
					t.Errorf("%s: output %q", name, out)
				}
			}
		})
	}
	// Positive control: without the kubelet in between, a client takes that for success.
	direct, _ := newMortal(t, (*httptest.Server).Start)
	at, err := direct.GetExec(&runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(at.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", target)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := command(t, executor); err != nil {
		t.Errorf("positive control: %v", err)
	}
}

// Regression: exec and attach stalled with a runtime that streams by https, and its certificate was
// not verified.
func TestARuntimeThatStreamsByHTTPS(t *testing.T) {
	s, _, rt := newServer(t, nil)
	var web *httptest.Server
	rt.streams, web = startStreams(t, (*httptest.Server).StartTLS)
	web.Config.ErrorLog = log.New(io.Discard, "", 0) // refused connections
	run := func(executor remotecommand.Executor) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out bytes.Buffer
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
		return out.String(), err
	}
	for _, path := range []string{"/exec/ns/p/c?command=x&output=1&error=1", "/attach/ns/p/c?output=1&error=1"} {
		s.streamTLS = nil // the machine's roots: the server's is not among them
		for name, executor := range executors(t, s, path) {
			if out, err := run(executor); err == nil || out != "" {
				t.Errorf("%s %s: a certificate that is not trusted: %q, %v", name, path, out, err)
			}
		}
		s.streamTLS = trust(web)
		for name, executor := range executors(t, s, path) {
			if out, err := run(executor); err != nil || !strings.HasPrefix(out, "c1 ") {
				t.Errorf("%s %s: %q, %v", name, path, out, err)
			}
		}
	}
}

// Regression: when a runtime died inside the frame of the status, or inside one longer than 1 MiB,
// kubectl exec ended with 0.
func TestTheRuntimesDeathInsideAFrameIsAnError(t *testing.T) {
	const answer = "HTTP/1.1 101 Switching Protocols\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
	frame := func(first uint32, flags byte, body string) string {
		head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, first), uint32(flags)<<24|uint32(len(body)))
		return string(head) + body
	}
	const reply, output, fin = 0x8003_0002, 5, 1
	long := strings.Repeat("x", 3<<20)
	success := frame(statusStream, fin, `{"status":"Success"}`)
	for name, tc := range map[string]struct {
		sent   string
		output int // bytes
		status string
	}{
		"whole":                     {frame(reply, 0, "abc") + frame(output, fin, "hello") + success, 5, `{"status":"Success"}`},
		"long":                      {frame(output, fin, long) + success, len(long), `{"status":"Success"}`},
		"ends without a status":     {frame(statusStream, fin, ""), 0, "lost"},
		"in the status":             {frame(output, 0, "hello") + success[:len(success)-1], 5, "lost"},
		"at the status":             {success[:8], 0, "lost"},
		"in a header":               {success[:5], 0, "lost"},
		"in a long frame":           {frame(output, fin, long)[:1<<20+8], 1 << 20, "lost"},
		"in a long frame's piece":   {frame(output, fin, long)[:1<<20+9], 1 << 20, "lost"},
		"in a frame of control":     {frame(reply, 0, "abc")[:10], 0, "lost"},
		"a long frame of control":   {frame(reply, 0, long) + success, 0, "lost"},
		"a long frame, then a part": {frame(output, 0, long) + success[:20], len(long), "lost"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &tellingConn{from: bufio.NewReader(strings.NewReader(answer + tc.sent)), closed: make(chan struct{})}
			close(c.closed) // no lingering
			got, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			rest, ok := strings.CutPrefix(string(got), answer)
			if !ok {
				t.Fatalf("the answer is %q", got[:min(len(got), 100)])
			}
			bytes, fins, status := 0, 0, ""
			for len(rest) > 0 {
				if len(rest) < 8 {
					t.Fatalf("%q is no frame", rest)
				}
				first, word := binary.BigEndian.Uint32([]byte(rest)), binary.BigEndian.Uint32([]byte(rest[4:]))
				length := int(word & 0xffffff)
				if rest = rest[8:]; length > len(rest) {
					t.Fatalf("a frame of %d bytes has %d", length, len(rest))
				}
				switch first {
				case output:
					if fins > 0 && length > 0 {
						t.Error("output after its end")
					}
					bytes += length
					fins += int(word >> 24)
				case statusStream:
					status += rest[:length]
				}
				rest = rest[length:]
			}
			if strings.Contains(status, "how the command ended is not known") {
				status = "lost"
			}
			if bytes != tc.output || fins != 1 || status != tc.status {
				t.Errorf("%d bytes of output and %d ends, status %q; want %d, 1, %q", bytes, fins, status, tc.output, tc.status)
			}
		})
	}
}
