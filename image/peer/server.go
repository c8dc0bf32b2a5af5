package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/opencontainers/go-digest"
)

// server is what other nodes connect to.
type server struct {
	swarm *Swarm
	l     net.Listener
	http  *http.Server
	end   context.CancelFunc
	work  sync.WaitGroup // serving, and requests

	mu      sync.Mutex
	closing bool
	failed  bool // nothing listens any more
}

func (s *Swarm) listen(f Settings) (*server, error) {
	l, err := net.Listen("tcp", f.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other nodes: %w", err)
	}
	return s.serve(l, f), nil
}

func (s *Swarm) serve(l net.Listener, f Settings) *server {
	v := &server{swarm: s, l: l}
	ctx, end := context.WithCancel(context.Background())
	v.end = end
	v.http = &http.Server{
		Handler: v, TLSConfig: newIdentity(f).server(), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
		ErrorLog:     log.New(io.Discard, "", 0), // of connections that are no node's
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	v.work.Go(func() {
		if err := v.http.ServeTLS(netutil.LimitListener(l, maxConns), "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("layers are not served to other nodes any more", "err", err)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.failed = true
		}
	})
	return v
}

// hasFailed says whether the server has ended without close.
func (v *server) hasFailed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failed
}

// close ends all connections, and waits until nothing uses the stock any more.
func (v *server) close() {
	v.mu.Lock()
	v.closing = true
	v.mu.Unlock()
	v.end()
	_ = v.http.Close() // the listener's error, if any, is of no use
	v.work.Wait()
}

// begin counts a request that close waits for.
func (v *server) begin() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closing {
		v.work.Add(1)
	}
	return !v.closing
}

// ServeHTTP implements http.Handler.
func (v *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !v.begin() {
		panic(http.ErrAbortHandler)
	}
	defer v.work.Done()
	// A node that reads no answers must not keep its connection. Uploads set this at each write.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(v.swarm.stall)); err != nil {
		panic(http.ErrAbortHandler)
	}
	name, err := nodeOf(r.TLS.PeerCertificates)
	if err != nil { // the handshake has refused it
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	if !v.swarm.knows(name) { // a node that was deleted has its certificate still
		http.Error(w, "no node of this cluster", http.StatusForbidden)
		return
	}
	switch {
	case r.Method == http.MethodPost && r.URL.Path == askPath:
		v.ask(w, r, name)
	case r.Method == http.MethodGet && r.URL.Path == blobPath:
		v.upload(w, r, name, v.blob)
	case r.Method == http.MethodGet && r.URL.Path == layerPath:
		v.upload(w, r, name, v.layer)
	default:
		http.NotFound(w, r)
	}
}

func (v *server) ask(w http.ResponseWriter, r *http.Request, name string) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuestion))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	q, err := parseQuestion(data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v.swarm.answerTo(name, q, time.Now())) // the asking node is gone
}

// upload sends something, unless too much is being sent already.
func (v *server) upload(w http.ResponseWriter, r *http.Request, name string,
	send func(context.Context, *sending, string, digest.Digest) error,
) {
	repository, blob, err := parseTarget(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !v.swarm.uploads.take(name, time.Now()) {
		http.Error(w, errBusy.Error(), http.StatusServiceUnavailable)
		return
	}
	defer v.swarm.uploads.done(name)
	out := &sending{w: w, control: http.NewResponseController(w), stall: v.swarm.stall}
	err = send(r.Context(), out, repository, blob)
	switch {
	case err == nil:
	case !out.began && errors.Is(err, ErrNone):
		http.Error(w, ErrNone.Error(), http.StatusNotFound)
	case !out.began: // asking again soon is of no use
		v.swarm.log.Warn("layer cannot be sent to another node", "blob", blob.String(), "err", err)
		http.Error(w, "blob cannot be read", http.StatusInternalServerError)
	default:
		v.swarm.log.Info("layer was not sent whole to another node", "blob", blob.String(), "err", err)
		panic(http.ErrAbortHandler) // so that it is not taken for whole
	}
}

func (v *server) blob(ctx context.Context, out *sending, repository string, blob digest.Digest) error {
	r, size, err := v.swarm.stock.OpenBlob(ctx, repository, blob)
	if err != nil {
		return err
	}
	defer r.Close()
	out.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	_, err = io.CopyBuffer(out, struct{ io.Reader }{r}, make([]byte, 128<<10))
	return err
}

func (v *server) layer(ctx context.Context, out *sending, repository string, blob digest.Digest) error {
	return v.swarm.stock.WriteLayer(ctx, repository, blob, func(size int64) io.Writer {
		out.w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		return out
	})
}

// sending is an answer. A node that does not read on is given up.
type sending struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration // see Swarm
	began   bool
}

func (s *sending) Write(p []byte) (int, error) {
	s.began = true
	if err := s.control.SetWriteDeadline(time.Now().Add(s.stall)); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}
