// Package inproc lets HTTP clients call an http.Handler of the same process: no sockets, no TLS, no
// framing, and no copy but one through a small buffer.
//
// Every request runs its handler in a goroutine of its own, which ends when the handler returns.
// As with a real server, what a handler writes is held back until it flushes, has written more than
// a few KiB, or returns; then the client gets the header, and reads the body as it is written. A
// handler that writes faster than its client reads waits once [bufferLimit] bytes are held.
//
// Who ends what: a client that cancels its request's context, or closes the response's body, ends
// the context of the handler's request, and the handler's writes fail from then on. A handler that
// panics ends the response: with an error from RoundTrip if no header was sent yet, else with
// io.ErrUnexpectedEOF in the body. Connections cannot be taken over (upgraded): handlers see no
// http.Hijacker, as with HTTP/2.
package inproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
)

const (
	// headLimit is how much a handler may write before the client gets the response's header.
	headLimit = 4 << 10
	// bufferLimit is how much of a body is held for a client that does not read.
	bufferLimit = 256 << 10
	// warningLimit is the size of all warnings of a response, in bytes.
	warningLimit = 4 << 10
)

// errGone is what a handler's writes return when no one reads them any more.
var errGone = errors.New("inproc: the client has gone")

// Transport returns a RoundTripper that has handler answer each request. log gets panics
// of it; it must not be nil.
func Transport(handler http.Handler, log *slog.Logger) http.RoundTripper {
	return transport{handler, log}
}

type transport struct {
	handler http.Handler
	log     *slog.Logger
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	x := &exchange{ctx: ctx, cancel: cancel, header: http.Header{}, started: make(chan struct{}), gone: make(chan bool, 1)}
	x.changed.L = &x.mu
	// A client that goes away must wake a handler that waits for room in the buffer.
	x.unhook = context.AfterFunc(ctx, func() { x.abandon(context.Cause(ctx)) })

	server := req.WithContext(ctx)
	server.Header = req.Header.Clone()
	if server.Header == nil {
		server.Header = http.Header{}
	}
	if server.Body == nil {
		server.Body = http.NoBody
	}
	server.Proto, server.ProtoMajor, server.ProtoMinor = "HTTP/2.0", 2, 0
	server.RequestURI = req.URL.RequestURI()
	server.RemoteAddr = "127.0.0.1:0"
	if server.Host == "" {
		server.Host = req.URL.Host
	}
	go x.serve(t.handler, server, t.log)

	select {
	case <-x.started:
	case <-req.Context().Done():
		cancel()
		return nil, context.Cause(req.Context())
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.status == 0 { // it panicked
		cancel()
		return nil, x.err
	}
	response := &http.Response{
		Status: strconv.Itoa(x.status) + " " + http.StatusText(x.status), StatusCode: x.status,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: x.sent, Body: body{x}, ContentLength: -1, Request: req,
	}
	if x.ended && x.err == io.EOF {
		response.ContentLength = int64(x.buffer.Len())
	}
	if req.Method == http.MethodHead {
		x.buffer.Reset()
		x.discard = true
	}
	return response, nil
}

// exchange is one request and its response: the handler's ResponseWriter at one end, the body that
// the client reads at the other.
type exchange struct {
	ctx     context.Context // ends when the client goes away
	cancel  context.CancelFunc
	unhook  func() bool
	started chan struct{} // closed when the response's header may be seen
	gone    chan bool     // http.CloseNotifier's channel
	header  http.Header   // the handler's

	mu       sync.Mutex
	changed  sync.Cond
	status   int         // 0 until the handler has chosen one
	sent     http.Header // header as it was when the handler chose status
	warnings []string    // headers of the response besides those of header
	warned   int         // size of warnings
	buffer   bytes.Buffer
	public   bool  // started is closed
	discard  bool  // no one will read the body (HEAD)
	ended    bool  // no more will be written or read
	err      error // why it ended; io.EOF if the handler returned
}

func (x *exchange) serve(handler http.Handler, req *http.Request, log *slog.Logger) {
	err := io.EOF
	defer func() {
		if r := recover(); r != nil {
			err = io.ErrUnexpectedEOF
			if r != http.ErrAbortHandler { //nolint:errorlint // the sentinel itself is what handlers panic with
				err = fmt.Errorf("inproc: handler of %s %s panicked: %v", req.Method, req.URL.Path, r)
				log.Error("handler panicked", "method", req.Method, "path", req.URL.Path, "panic", r, "stack", string(debug.Stack()))
			}
		}
		x.finish(err)
		_ = req.Body.Close() // a RoundTripper closes it, whatever happens
	}()
	handler.ServeHTTP(x, req)
}

// finish ends the exchange from the handler's side.
func (x *exchange) finish(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unhook()
	x.noticeLocked()
	if err == io.EOF { //nolint:errorlint // ours, never wrapped
		x.chooseLocked(http.StatusOK)
	}
	x.endLocked(err)
}

// abandon ends the exchange from the client's side.
func (x *exchange) abandon(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.buffer = bytes.Buffer{}
	x.endLocked(err)
	select {
	case x.gone <- true:
	default:
	}
}

// noticeLocked ends the exchange if the client has gone. abandon does the same, but in a goroutine
// of its own: the handler may have seen the end of its context before.
func (x *exchange) noticeLocked() {
	if !x.ended && x.ctx.Err() != nil {
		x.buffer = bytes.Buffer{}
		x.endLocked(context.Cause(x.ctx))
	}
}

func (x *exchange) endLocked(err error) {
	if !x.ended {
		x.ended, x.err = true, err
	}
	x.publishLocked()
	x.changed.Broadcast()
}

func (x *exchange) publishLocked() {
	if !x.public {
		x.public = true
		close(x.started)
	}
}

func (x *exchange) chooseLocked(status int) {
	if x.status != 0 {
		return
	}
	x.status, x.sent = status, x.header.Clone()
	if len(x.warnings) > 0 {
		x.sent["Warning"] = append(x.sent["Warning"], x.warnings...)
	}
}

// AddWarning adds a Warning header to the response, unless there are many. Unlike Header, it may be
// called by any goroutine at any time: when the header was sent, it does nothing.
func (x *exchange) AddWarning(value string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.status == 0 && x.warned+len(value) <= warningLimit && !slices.Contains(x.warnings, value) {
		x.warnings = append(x.warnings, value)
		x.warned += len(value)
	}
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter. Informational statuses are not passed on.
func (x *exchange) WriteHeader(status int) {
	if status < 200 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.chooseLocked(status)
}

// Write implements http.ResponseWriter. It waits while the buffer is full.
func (x *exchange) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.chooseLocked(http.StatusOK)
	written := 0
	for {
		x.noticeLocked()
		if x.ended {
			return written, errGone
		}
		if x.discard {
			return written + len(p), nil
		}
		if room := bufferLimit - x.buffer.Len(); room > 0 {
			n := min(room, len(p))
			x.buffer.Write(p[:n])
			written, p = written+n, p[n:]
			if x.buffer.Len() > headLimit {
				x.publishLocked()
			}
			if x.public {
				x.changed.Broadcast()
			}
		}
		if len(p) == 0 {
			return written, nil
		}
		x.changed.Wait()
	}
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.chooseLocked(http.StatusOK)
	x.publishLocked()
	x.changed.Broadcast()
}

// CloseNotify implements http.CloseNotifier, without which the API server's response writers take
// a ResponseWriter for one that cannot flush.
func (x *exchange) CloseNotify() <-chan bool { return x.gone }

// body is the response's body, read and closed by the client.
type body struct{ x *exchange }

// Read implements io.Reader. What was written before the end is read before the end is reported.
func (b body) Read(p []byte) (int, error) {
	x := b.x
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		if x.buffer.Len() > 0 {
			n, _ := x.buffer.Read(p)
			x.changed.Broadcast()
			return n, nil
		}
		if x.ended {
			return 0, x.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		x.changed.Wait()
	}
}

// Close implements io.Closer.
func (b body) Close() error {
	b.x.abandon(http.ErrBodyReadAfterClose)
	b.x.cancel()
	return nil
}
