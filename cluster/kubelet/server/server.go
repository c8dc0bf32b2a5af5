// Package server is the kubelet's HTTPS API: what the API server, kubectl (through it) and
// monitoring ask a node.
//
//	GET  /containerLogs/NS/POD/CONTAINER      a container's log, followed if wanted
//	any  /exec/NS/POD[/UID]/CONTAINER         a command in a container, over SPDY or WebSocket
//	any  /attach/NS/POD[/UID]/CONTAINER       a container's own standard streams
//	any  /portForward/NS/POD[/UID]            connections to a pod's ports
//	POST /run/NS/POD[/UID]/CONTAINER          a command, answered with its output
//	GET  /pods, /runningpods/                 what should run, and what the runtime runs
//	GET  /stats/summary, /metrics, /metrics/resource, /healthz, /configz
//
// Every request is authenticated (client certificate or a token that the API server reviews) and
// then authorized by the API server, as get, create and so on of nodes/NAME with the path's
// subresource. RBAC therefore decides about every request. Streams are passed on unread to the URL
// that the runtime returns for each.
//
// Errors are plain text in upstream's words, with upstream's status codes: the API server shows
// them to users. Nothing is read from request bodies, header and query are bounded, and what a log
// reader does not take is held back at its source.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// Host is what the server asks of the kubelet. Every method answers from memory.
type Host interface {
	// Pods returns the pods that this kubelet runs, with the status that it would report of each;
	// shared, not to be changed.
	Pods() []*v1.Pod
	// Pod returns one of them; an empty uid matches any.
	Pod(namespace, name string, uid types.UID) (*v1.Pod, bool)
	// ContainerID returns the id of the container's newest instance that is running.
	ContainerID(pod *v1.Pod, container string) (string, error)
	// SandboxID returns the id of the pod's ready sandbox.
	SandboxID(pod *v1.Pod) (string, error)
	// Node returns the node as this kubelet last reported it.
	Node() *v1.Node
	// Healthy returns an error that says what is wrong when pods cannot be run now.
	Healthy(ctx context.Context) error
}

// Options say where the server listens and whom it believes.
type Options struct {
	// NodeName is this node's name, which requests are authorized for.
	NodeName string
	// Address is where to listen (":10250"); Listener, if given, is used instead.
	Address  string
	Listener net.Listener
	// TLS has the server's certificate. Without one the server makes one that no one vouches for.
	TLS *tls.Config
	// ClientCAFile has the PEM certificates of those who issue client certificates, and is followed;
	// without it only tokens are accepted.
	ClientCAFile string
	// Kube is asked to review tokens and access.
	Kube kubernetes.Interface
	// Authenticator and Authorizer, if given, are used instead of asking Kube.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	// Config is what /configz shows as the kubelet's configuration; it must hold no secrets.
	Config any
	// RootDir is the kubelet's directory, whose file system /stats/summary tells about.
	RootDir string
	// Volumes, if given, tells /stats/summary what a pod's volumes take.
	Volumes func(context.Context, *v1.Pod) []statsapi.VolumeStats
	// Claims, if given, tells /metrics what the volumes of a pod's claims take.
	Claims func(context.Context, *v1.Pod) []statsapi.VolumeStats
	// Log gets errors and warnings; nil discards them.
	Log *slog.Logger
}

// Server is the kubelet's HTTPS API.
type Server struct {
	host    Host
	runtime *cri.Client
	opts    Options
	auth    *auth
	stats   *stats
	handler http.Handler
	// streamTLS is for runtimes that stream by https. Without one, their certificates are verified
	// with the machine's roots.
	streamTLS *tls.Config
}

// New returns a server for what host runs on runtime. It does not listen yet.
func New(host Host, runtime *cri.Client, opts Options) (*Server, error) {
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	a, err := newAuth(opts)
	if err != nil {
		return nil, err
	}
	s := &Server{host: host, runtime: runtime, opts: opts, auth: a, stats: newStats(host, runtime, opts)}
	mux := http.NewServeMux()
	s.routes(mux)
	s.handler = a.wrap(bounded(mux))
	return s, nil
}

// Handler answers requests as the server does, for those who listen themselves.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes(mux *http.ServeMux) {
	healthz.InstallHandler(mux, healthz.PingHealthz,
		healthz.NamedCheck("syncloop", func(r *http.Request) error { return s.host.Healthy(r.Context()) }))
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /runningpods/", s.runningPods)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.HandleFunc("POST /stats/summary", s.summary)
	mux.HandleFunc("GET /metrics/resource", s.resourceMetrics)
	mux.Handle("GET /metrics", s.metrics())
	mux.HandleFunc("GET /configz", s.configz)
	mux.HandleFunc("/logs/", disabled("logs endpoint is disabled."))
	mux.HandleFunc("/debug/pprof/", disabled("profiling endpoint is disabled."))
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.containerLogs)
	for _, form := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		for _, method := range []string{"GET ", "POST "} {
			mux.HandleFunc(method+"/exec"+form, s.exec)
			mux.HandleFunc(method+"/attach"+form, s.attach)
		}
		mux.HandleFunc("POST /run"+form, s.run)
	}
	for _, form := range []string{"/{namespace}/{pod}", "/{namespace}/{pod}/{uid}"} {
		for _, method := range []string{"GET ", "POST "} {
			mux.HandleFunc(method+"/portForward"+form, s.portForward)
		}
	}
}

// maxBody bounds what a request may send us; nothing here reads it.
const maxBody = 64 << 10

func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

func disabled(why string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, why, http.StatusMethodNotAllowed) }
}

// stopTimeout is how long requests may go on when the server ends.
const stopTimeout = time.Second

// Run serves until ctx ends. It returns an error when it cannot listen.
func (s *Server) Run(ctx context.Context) error {
	listener := s.opts.Listener
	if listener == nil {
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.opts.Address); err != nil {
			return fmt.Errorf("kubelet API: %w (another kubelet may run on this machine)", err)
		}
	}
	config, err := s.tls()
	if err != nil {
		listener.Close()
		return err
	}
	server := &http.Server{
		Handler: s.handler, TLSConfig: config,
		ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, MaxHeaderBytes: 1 << 20,
		ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug), // clients that hang up
	}
	if s.auth.clientCA != nil {
		var following sync.WaitGroup
		defer following.Wait()
		end, cancel := context.WithCancel(ctx)
		defer cancel() // before the wait: the server may fail while ctx goes on
		following.Go(func() { s.auth.clientCA.Run(end, 1) })
	}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(end) != nil { // streams and followed logs go on forever
			server.Close()
		}
	})
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) tls() (*tls.Config, error) {
	config := &tls.Config{}
	if s.opts.TLS != nil {
		config = s.opts.TLS.Clone()
	}
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	if len(config.Certificates) == 0 && config.GetCertificate == nil && config.GetConfigForClient == nil {
		cert, key, err := certutil.GenerateSelfSignedCertKey(s.opts.NodeName, nil, nil)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if s.auth.clientCA != nil {
		// Asked for and not demanded: who has a token needs no certificate. Authorities are not named,
		// because they change.
		config.ClientAuth = tls.RequestClientCert
	}
	return config, nil
}

// fail answers with an error's text, as the API server expects it.
func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text))
}

func writeJSON(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

func (s *Server) configz(w http.ResponseWriter, _ *http.Request) {
	shown := map[string]any{}
	if s.opts.Config != nil {
		shown["kubeletconfig"] = s.opts.Config
	}
	writeJSON(w, shown)
}
