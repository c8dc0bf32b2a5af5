// Package apiserver serves the Kubernetes API of a cluster from one process.
//
// It wires upstream's parts by hand: the generic server of k8s.io/apiserver with its filters,
// upstream's registries for the API groups that the cluster serves (they bring validation,
// defaults, printed tables and subresources), the server for custom resources behind it, admission,
// RBAC and the node authorizer in front. What is ours is what a single node needs less of: etcd
// runs in the process and is called directly, in-process clients call the handler directly
// ([Server.ClientConfig]), one set of informers serves the server itself and the other components
// of the process and reads the storage directly (package direct), and OpenAPI documents are made
// at build time and kept compressed (package openapi).
//
// A server's life: [New] checks its options and does no I/O, so that other components can be given
// clients and informers of it. [Server.Run] opens the listener and the store, builds the server and
// serves until its context ends. In-process requests that come before wait; [Server.Ready] says
// when everything is served. Run's errors before that are one sentence that says what is wrong and
// what to do.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	kubecapabilities "k8s.io/kubernetes/pkg/capabilities"

	"github.com/coracle-project/coracle/cluster/apiserver/direct"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/inproc"
)

const (
	// insideHost is the host in the URLs of in-process requests; it is never looked up.
	insideHost = "http://apiserver.inside"
	// readyPoll is how often a starting server is asked whether it is ready.
	readyPoll = 5 * time.Millisecond
	// drainLimit is how long requests and connections are waited for when the server stops. Watches
	// are told to end.
	drainLimit = 2 * time.Second
)

// Server is an API server.
type Server struct {
	options   Options
	addresses addresses
	inside    *identities
	transport http.RoundTripper
	storages  *direct.Storages
	informers informers.SharedInformerFactory
	caches    caches
	held      atomic.Bool                        // pods reach it at the kubernetes Service's address
	tokenKeys atomic.Pointer[serviceAccountKeys] // nil until they are loaded

	listening chan struct{} // closed when address is known
	address   net.Addr
	serving   chan struct{} // closed when handler is set
	handler   http.Handler
	forInside http.Handler // set with handler, for clients in this process
	ready     chan struct{}
	ended     context.Context // ends in-process requests
	end       context.CancelFunc
	runOnce   sync.Once
}

// New returns a server that does nothing yet.
func New(options Options) (*Server, error) {
	addresses, err := options.complete()
	if err != nil {
		return nil, err
	}
	// Upstream's validation refuses privileged containers unless it is told, for the whole process,
	// that they are allowed. Whether a namespace takes them is PodSecurity's to say.
	kubecapabilities.Setup(true, 0)
	s := &Server{
		options: options, addresses: addresses, inside: newIdentities(),
		listening: make(chan struct{}), serving: make(chan struct{}), ready: make(chan struct{}),
	}
	s.caches.log, s.caches.period = options.Log, options.calmPeriod
	s.ended, s.end = context.WithCancel(context.Background())
	s.transport = inproc.Transport(http.HandlerFunc(s.serveInside), s.options.Log)
	kube, err := kubernetes.NewForConfig(protobuf(s.loopback()))
	if err != nil {
		return nil, err
	}
	s.storages = direct.New(s.ended)
	s.informers = s.storages.Informers(client.NewInformers(kube))
	return s, nil
}

// ClientConfig returns the configuration of an in-process client that acts as the given user in the
// given groups; RBAC applies to it. It can be used at once: requests wait until the server serves.
func (s *Server) ClientConfig(name string, groups ...string) *rest.Config {
	return &rest.Config{Host: insideHost, Transport: s.transport, BearerToken: s.inside.token(name, groups), QPS: -1}
}

// loopback is the identity of the server itself.
func (s *Server) loopback() *rest.Config {
	return s.ClientConfig(user.APIServerUser, user.SystemPrivilegedGroup)
}

func protobuf(c *rest.Config) *rest.Config {
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// Informers returns the informers of the process. The server has its own among them and starts them
// when it serves. A caller that adds informers later starts the factory again, after Ready.
func (s *Server) Informers() informers.SharedInformerFactory { return s.informers }

// Log returns the logger of the options, for the other parts of the process.
func (s *Server) Log() *slog.Logger { return s.options.Log }

// Ready is closed when everything is served: /readyz answers ok.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Listening is closed when Address is known.
func (s *Server) Listening() <-chan struct{} { return s.listening }

// Address returns where the server listens, nil before Listening is closed.
func (s *Server) Address() net.Addr {
	select {
	case <-s.listening:
		return s.address
	default:
		return nil
	}
}

// serveInside answers an in-process request.
func (s *Server) serveInside(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.serving:
	case <-s.ended.Done():
		http.Error(w, "the API server has stopped", http.StatusServiceUnavailable)
		return
	case <-r.Context().Done():
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer context.AfterFunc(s.ended, cancel)()
	defer cancel()
	select {
	case <-s.ready:
		s.forInside.ServeHTTP(w, r.WithContext(ctx))
	default: // the complete chain answers 503, not 404, for resources that are not known yet
		s.handler.ServeHTTP(w, r.WithContext(ctx))
	}
}

// Run serves until ctx ends, and returns nil then. It can be called once.
func (s *Server) Run(ctx context.Context) error {
	err := errors.New("apiserver: Run was called twice")
	s.runOnce.Do(func() { err = s.run(ctx) })
	return err
}

// shut closes the store, after what reads it in this process has ended.
func (s *Server) shut(store *store) {
	s.end()
	s.storages.Wait()
	store.shut()
}

func (s *Server) run(ctx context.Context) error {
	defer s.end()
	types := make(chan definedTypes, 1) // meanwhile, the store opens
	go func() { types <- defineTypes(s.options.ExtraSchemes) }()
	listener, letGo, err := s.listen(ctx)
	if err != nil {
		return err
	}
	defer letGo()
	defer listener.Close()
	var cut *cutOff
	if s.options.Several {
		cut = newCutOff(listener, s.options.Log)
		listener = cut
	}
	s.address = listener.Addr()
	close(s.listening)

	served := servedResources()
	store, err := openStore(ctx, &s.options, served)
	if err != nil {
		return err
	}
	defer s.shut(store)
	store.caches, s.caches.compact, s.caches.free = &s.caches, store.compact, giveBack
	b := &build{
		options: &s.options, addresses: s.addresses, listener: listener, store: store, served: served,
		inside: s.inside, loopback: protobuf(s.loopback()), storages: s.storages, informers: s.informers, held: &s.held, types: types,
	}
	server, err := b.server(ctx)
	if err != nil {
		return err
	}
	s.tokenKeys.Store(b.keys)
	prepared := server.PrepareRun()
	forgetExpressions(server.Handler.GoRestfulContainer)
	forgetDocumentation(server.Handler.GoRestfulContainer)
	s.handler, s.forInside = server.Handler, b.forInside
	close(s.serving)
	s.storages.Open()
	following, end := context.WithCancel(context.WithoutCancel(ctx)) // requests use informers until the last has ended
	defer end()
	b.follow(ctx, following)

	var background sync.WaitGroup
	defer background.Wait()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	background.Go(func() { s.caches.run(ctx) })
	if cut != nil && store.members != nil {
		background.Go(func() { cut.run(ctx, store.members.Led) })
	}
	go s.announce(ctx)
	background.Go(func() {
		select {
		case <-s.ready:
			b.others.Register(ctx)
		case <-ctx.Done():
		}
	})
	go func() {
		select {
		case <-store.stopped:
			stop(store.members.End())
		case <-ctx.Done():
		}
	}()
	// In-process watches delay nothing, but their readers should see them end.
	defer context.AfterFunc(ctx, s.end)()
	if err := prepared.RunWithContext(ctx); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if cause := context.Cause(ctx); cause != ctx.Err() { //nolint:errorlint // identity is meant
		return cause
	}
	return nil
}

// announce closes ready when the server says that it is.
func (s *Server) announce(ctx context.Context) {
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		w := httptest.NewRecorder()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, insideHost+"/readyz", nil)
		r.Header.Set("Authorization", "Bearer "+s.loopback().BearerToken) // who shows nothing may not be let in
		s.handler.ServeHTTP(w, r)
		if w.Code == http.StatusOK {
			close(s.ready)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
