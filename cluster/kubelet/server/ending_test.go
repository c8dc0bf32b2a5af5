package server

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

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

func (d dying) Exec(_ context.Context, _ string, _ []string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan streamcommand.TerminalSize) error {
	_, _ = io.WriteString(out, "half")
	if in != nil {
		// The client has it by the time it says so.
		_, _ = io.ReadFull(in, make([]byte, 4))
	}
	d.die()
	return nil
}

func newMortal(t *testing.T) *streams {
	s := &streams{}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
	m := &mortal{Listener: web.Listener}
	web.Listener = m
	web.Start()
	t.Cleanup(web.Close)
	config := streaming.DefaultConfig
	var err error
	if config.BaseURL, err = url.Parse(web.URL); err != nil {
		t.Fatal(err)
	}
	if s.Server, err = streaming.NewServer(config, dying{s, m.die}); err != nil {
		t.Fatal(err)
	}
	return s
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

// Regression: kubectl exec ended with 0 when the runtime was killed during the command.
func TestTheRuntimesDeathIsAnError(t *testing.T) {
	s, _, rt := newServer(t, nil)
	rt.streams = newMortal(t)
	server := httptest.NewTLSServer(s.Handler())
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	run := func(executor remotecommand.Executor, err error) (string, error) {
		if err != nil {
			t.Fatal(err)
		}
		in, answer := io.Pipe()
		defer answer.Close()
		out := &echo{to: answer}
		err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: io.Discard})
		return out.all.String(), err
	}
	target, err := url.Parse(server.URL + "/exec/ns/p/c?command=x&input=1&output=1&error=1")
	if err != nil {
		t.Fatal(err)
	}
	for name, dial := range map[string]func() (remotecommand.Executor, error){
		"SPDY": func() (remotecommand.Executor, error) { return remotecommand.NewSPDYExecutor(config, "POST", target) },
		"WebSocket v5": func() (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(config, "GET", target.String())
		},
	} {
		out, err := run(dial())
		if err == nil || !strings.Contains(err.Error(), "the container runtime ended the connection before the command did") {
			t.Errorf("%s: %v", name, err)
		}
		if out != "half" {
			t.Errorf("%s: output %q", name, out)
		}
	}
	// Positive control: without the kubelet in between, a client takes that for success.
	at, err := newMortal(t).GetExec(&runtimeapi.ExecRequest{ContainerId: "c1", Cmd: []string{"x"}, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	direct, err := url.Parse(at.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", direct)); err != nil {
		t.Errorf("positive control: %v", err)
	}
}
