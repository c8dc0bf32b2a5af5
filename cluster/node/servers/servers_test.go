package servers

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// server answers whether it is ready with a status.
func server(t *testing.T, status int) (s *httptest.Server, address string) {
	t.Helper()
	s = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(s.Close)
	return s, s.Listener.Addr().String()
}

// verify trusts the certificate that all servers of httptest have.
func verify(s *httptest.Server) func() (*tls.Config, error) {
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return func() (*tls.Config, error) { return &tls.Config{RootCAs: pool, ServerName: "example.com"}, nil }
}

func open(t *testing.T, file, given string, s *httptest.Server) *Servers {
	t.Helper()
	all, err := Open(file, given, verify(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// reached is the server that a client gets.
func reached(t *testing.T, s *Servers) string {
	t.Helper()
	conn, err := s.Dial(t.Context(), "tcp", "given.example:6443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.RemoteAddr().String()
}

func TestDialFailsOver(t *testing.T) {
	one, first := server(t, http.StatusOK)
	_, second := server(t, http.StatusOK)
	_, starting := server(t, http.StatusInternalServerError)
	file := filepath.Join(t.TempDir(), "servers.json")
	s := open(t, file, first, one)
	s.limit = time.Minute // those that answer may be slow; none of the others is waited for
	s.set([]string{starting, first, second})
	if got := reached(t, s); got != first {
		t.Errorf("reached %s, want the one that answered before, %s", got, first)
	}
	one.Close()
	began := time.Now()
	if got := reached(t, s); got != second {
		t.Errorf("reached %s, want %s, which is ready", got, second)
	}
	if took := time.Since(began); took > s.limit {
		t.Errorf("that took %v", took)
	}
	if all := s.All(); all[0] != second {
		t.Errorf("the next connection would try %s first", all[0])
	}

	// The next start knows them all, though it is told of the first only.
	again := open(t, file, first, one)
	again.limit = s.limit
	if got := reached(t, again); got != second {
		t.Errorf("after a start: reached %s, want %s", got, second)
	}
	only := open(t, filepath.Join(t.TempDir(), "servers.json"), starting, one)
	if _, err := only.Dial(t.Context(), "tcp", ""); err != nil {
		t.Errorf("the only server is not asked whether it is ready: %v", err)
	}
	again.set([]string{starting, first})
	if _, err := again.Dial(t.Context(), "tcp", ""); err == nil || !strings.Contains(err.Error(), "no API server of the cluster answers") {
		t.Errorf("where none is ready: %v", err)
	}
}

// Regression: a node that had joined through a balancer, or by an address that is translated, had
// no server any more when it could not reach the published ones.
func TestTheGivenServerStays(t *testing.T) {
	one, given := server(t, http.StatusOK)
	s := open(t, filepath.Join(t.TempDir(), "servers.json"), given, one)
	s.set([]string{"127.0.0.1:1"})
	s.set([]string{"127.0.0.1:1", "127.0.0.1:2"})
	if got := reached(t, s); got != given {
		t.Errorf("reached %s, want the server that was given, %s", got, given)
	}
}

// A server that says nothing, such as one whose process is stopped, holds no client up for long.
func TestDialPassesASilentServer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	one, first := server(t, http.StatusOK)
	s := open(t, filepath.Join(t.TempDir(), "servers.json"), silent.Addr().String(), one)
	s.limit = 3 * time.Second // the other one may be slow
	s.set([]string{silent.Addr().String(), first})
	began := time.Now()
	if got := reached(t, s); got != first || time.Since(began) > 2*s.limit {
		t.Errorf("reached %s after %v", got, time.Since(began))
	}
}

// A machine that has a server's address and not its certificate is no server.
func TestDialVerifies(t *testing.T) {
	_, first := server(t, http.StatusOK)
	s, err := Open(filepath.Join(t.TempDir(), "servers.json"), first, func() (*tls.Config, error) {
		return &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.set([]string{first, "127.0.0.1:1"})
	if _, err := s.Dial(t.Context(), "tcp", ""); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	one, first := server(t, http.StatusOK)
	file := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, file, first, one)
	s.set(nil) // no EndpointSlice takes the last server
	if all := s.All(); !slices.Equal(all, []string{first}) {
		t.Errorf("a damaged file gives %v", all)
	}
}

func TestAddresses(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(6443))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"192.0.2.1"}},
			{Addresses: []string{"2001:db8::1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
			{Addresses: []string{"192.0.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}},
		},
	}
	if got := Addresses(slice); !slices.Equal(got, []string{"192.0.2.1:6443", "[2001:db8::1]:6443"}) {
		t.Error(got)
	}
}
