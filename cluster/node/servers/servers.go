// Package servers finds an API server that answers, for a node of a cluster with several.
//
// A client dials through [Servers.Dial], which chooses the address and ignores the one it is given.
// It stays with the server that it has reached last until that does not answer. The others come
// from the EndpointSlice of the kubernetes Service ([Servers.Follow]) and are kept in a file, so
// that a node that starts while a server is away knows the rest.
package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discovery "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// Name is in the certificate of each API server of a cluster, whatever its address.
	Name = "kubernetes.default.svc"
	// answerLimit bounds one connection, and the question whether a server is ready.
	answerLimit = time.Second
	// silence is how long a server may not answer at all before its connections end: the kernel
	// asks, so no process wakes for it.
	silence         = 6 * time.Second
	probeAfter      = 3 * time.Second
	probeEvery      = time.Second
	probes          = 3
	longestFile     = 64 << 10
	mostServers     = 64
	kubernetesSlice = "kubernetes"
)

// Servers are the API servers of a cluster.
type Servers struct {
	file string
	// given is the server that the node was told of. It may be the name of several, or an address of
	// a balancer, which no EndpointSlice has.
	given string
	// verify returns how to verify a server; the authority may change.
	verify func() (*tls.Config, error)
	log    *slog.Logger
	limit  time.Duration // answerLimit, but for tests

	mu sync.Mutex
	// all are addresses with ports, the one to try first at the front.
	all []string
}

// Open returns the servers in a file, and given, the one that the node was told of. What
// verify returns is used when there are several. log may be nil.
func Open(file, given string, verify func() (*tls.Config, error), log *slog.Logger) (*Servers, error) {
	s := &Servers{file: file, given: given, verify: verify, log: cmp.Or(log, slog.New(slog.DiscardHandler)), limit: answerLimit}
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case len(data) > longestFile:
		s.log.Warn("the file with the cluster's API servers is too long", "file", file)
	default:
		if err := json.Unmarshal(data, &s.all); err != nil { // the given one is left
			s.log.Warn("the file with the cluster's API servers cannot be read", "file", file, "err", err)
			s.all = nil
		}
	}
	if !slices.Contains(s.all, given) {
		s.all = append(s.all, given)
	}
	return s, nil
}

// All returns the addresses, the one to try first at the front.
func (s *Servers) All() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// set replaces the addresses, and keeps the one that the node was told of: it is tried if no other
// can be reached. An empty list is ignored: a cluster has an API server.
func (s *Servers) set(all []string) {
	if len(all) == 0 || len(all) > mostServers {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(all, s.given) {
		all = append(slices.Clone(all), s.given)
	}
	if first := s.all[0]; slices.Contains(all, first) { // it has answered
		all = append([]string{first}, slices.DeleteFunc(slices.Clone(all), func(a string) bool { return a == first })...)
	}
	if slices.Equal(s.all, all) {
		return
	}
	s.all = all
	s.saveLocked()
}

func (s *Servers) saveLocked() {
	data, err := json.Marshal(s.all)
	if err == nil {
		err = pki.Replace(s.file, append(data, '\n'), 0o600)
	}
	if err != nil {
		s.log.Warn("the cluster's API servers are not kept", "err", err)
	}
}

// prefer puts an address that has answered to the front.
func (s *Servers) prefer(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.all, address)
	if i <= 0 {
		return
	}
	s.log.Info("another API server is used", "server", address, "instead of", s.all[0])
	s.all = append([]string{address}, slices.Delete(slices.Clone(s.all), i, i+1)...)
}

// Follow has the servers be those of the kubernetes Service. The owner of the informer starts it.
func (s *Servers) Follow(slices discovery.EndpointSliceInformer) error {
	seen := func(obj any) {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok && slice.Name == kubernetesSlice && slice.Namespace == metav1.NamespaceDefault {
			s.set(Addresses(slice))
		}
	}
	_, err := slices.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, now any) { seen(now) },
	})
	return err
}

// Addresses returns those of an EndpointSlice, with ports.
func Addresses(slice *discoveryv1.EndpointSlice) (all []string) {
	for _, port := range slice.Ports {
		if port.Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, address := range e.Addresses {
				all = append(all, net.JoinHostPort(address, strconv.Itoa(int(*port.Port))))
			}
		}
	}
	return all
}

// Dial connects to the first server that is ready. Of several it asks: one that has just started,
// or that has no quorum, accepts connections, too.
func (s *Servers) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	all := s.All()
	if len(all) == 1 {
		return s.dial(ctx, network, all[0])
	}
	var errs []error
	for _, address := range all {
		err := s.ready(ctx, address)
		if err == nil {
			var conn net.Conn
			if conn, err = s.dial(ctx, network, address); err == nil {
				s.prefer(address)
				return conn, nil
			}
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("no API server of the cluster answers: %w", errors.Join(errs...))
}

func (s *Servers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         s.limit,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes},
		Control: func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			}), err)
		},
	}
	return d.DialContext(ctx, network, address)
}

// ready asks a server whether it is ready. One that does not tell unknown clients counts as ready.
func (s *Servers) ready(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	verify, err := s.verify()
	if err != nil {
		return err
	}
	t := &http.Transport{
		TLSClientConfig: verify, DisableKeepAlives: true, ForceAttemptHTTP2: false,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) { return s.dial(ctx, network, address) },
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := t.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden:
		return nil
	}
	return fmt.Errorf("%s is not ready: %s", address, answer.Status)
}
