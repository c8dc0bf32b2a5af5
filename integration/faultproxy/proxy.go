// Package faultproxy is a proxy before a registry that breaks answers in the ways in which
// networks and registries break them.
package faultproxy

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Fault is what is done to one answer. The zero value does nothing.
type Fault struct {
	// Status is answered instead of asking the registry, with RetryAfter if not empty.
	Status     int
	RetryAfter string
	// Reset closes the connection without an answer.
	Reset bool
	// Delay is waited before the answer.
	Delay time.Duration
	// Hold, if not nil, is closed when the answer may come.
	Hold <-chan struct{}
	// Break is what happens to the body after At bytes.
	Break Break
	At    int64
}

// Break is a way in which a body is not what the registry sent.
type Break int

// Ways to break a body.
const (
	Whole    Break = iota
	Cut            // the connection ends
	Truncate       // the body ends as if that were all
	Corrupt        // one byte is another
)

// Proxy is in front of one registry.
type Proxy struct {
	*httptest.Server

	mu    sync.Mutex
	fault func(r *http.Request) Fault
	asked int
	sent  atomic.Int64
}

// Start serves HTTPS with a certificate before the registry at target, which transport
// reaches. The proxy ends with the test.
func Start(t testing.TB, cert tls.Certificate, target string, transport http.RoundTripper) *Proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{}
	silent := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		Transport:      transport,
		ModifyResponse: p.breakBody,
		ErrorLog:       silent,
	}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.next(r)
		time.Sleep(f.Delay) // the fault itself
		if f.Hold != nil {
			select {
			case <-f.Hold:
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
		switch {
		case f.Reset:
			panic(http.ErrAbortHandler)
		case f.Status != 0:
			if f.RetryAfter != "" {
				w.Header().Set("Retry-After", f.RetryAfter)
			}
			w.WriteHeader(f.Status)
		default:
			forward.ServeHTTP(w, r.WithContext(withFault(r.Context(), f)))
		}
	}))
	p.Config.ErrorLog = silent
	p.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	p.StartTLS()
	t.Cleanup(p.Close)
	return p
}

// Host is the proxy as a reference names it.
func (p *Proxy) Host() string { return p.Listener.Addr().String() }

// Set says what is done to each answer from now on; nil is nothing.
func (p *Proxy) Set(fault func(r *http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.asked = fault, 0
}

// Asked counts the requests since the last Set.
func (p *Proxy) Asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// Sent is how many bytes of bodies have been sent since the start.
func (p *Proxy) Sent() int64 { return p.sent.Load() }

func (p *Proxy) next(r *http.Request) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.fault == nil {
		return Fault{}
	}
	return p.fault(r)
}
