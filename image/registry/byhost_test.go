package registry

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// secure is a fake with TLS that asks for client certificates.
type secure struct {
	*fake
	url, host string

	mu  sync.Mutex
	met map[string]bool // whether who asked for a path showed one
}

func newSecure(t *testing.T) *secure {
	s := &secure{fake: newFake(t), met: map[string]bool{}}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.met[r.URL.Path] = len(r.TLS.PeerCertificates) > 0
		s.mu.Unlock()
		s.serve(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // who does not trust it hangs up
	srv.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	s.url, s.host = srv.URL, hostPort(t, srv.URL)
	return s
}

// shown says whether a client certificate came with each request, of which there were some.
func (s *secure) shown(t *testing.T, want bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.met) == 0 {
		t.Errorf("%s was not asked", s.host)
	}
	for path, got := range s.met {
		if got != want {
			t.Errorf("%s%s: client certificate shown: %v", s.host, path, got)
		}
	}
}

// testCertificate writes the certificate of httptest's servers as ca.pem, and with its key as
// client.pem.
func testCertificate(t *testing.T) (dir string) {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	key, err := x509.MarshalPKCS8PrivateKey(srv.TLS.Certificates[0].PrivateKey)
	must(t, err)
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "ca.pem"), ca, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "client.pem"), append(ca, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...),
		0o600))
	return dir
}

// tokenFrom makes a registry want a token of a service that gives one to anybody.
func tokenFrom(registry, service *secure) {
	service.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/token" {
			return false
		}
		fmt.Fprint(w, `{"token":"good"}`)
		return true
	}
	registry.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer good" {
			return false
		}
		challenge(w, `Bearer realm="%s/token",service="s"`, service.url)
		return true
	}
}

// Regression: a hostile registry could redirect us, and we showed the client certificate for the
// registry to the host that it named. That host may accept the certificate.
func TestClientCertificateIsForItsHostAlone(t *testing.T) {
	dir := testCertificate(t)
	for name, c := range map[string]struct {
		send  func(registry, elsewhere *secure) // the clients elsewhere
		named bool                              // in token_hosts
		shown bool                              // to elsewhere
	}{
		"redirect": {send: func(registry, elsewhere *secure) {
			registry.intercept = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, elsewhere.url+r.URL.Path, http.StatusTemporaryRedirect)
				return true
			}
		}},
		"token service":                {send: tokenFrom},
		"token service that was named": {send: tokenFrom, named: true, shown: true},
	} {
		t.Run(name, func(t *testing.T) {
			registry, elsewhere := newSecure(t), newSecure(t)
			registry.has([]byte("blob"))
			blob := elsewhere.has([]byte("blob"))
			c.send(registry, elsewhere)
			cfg := Config{Settings: map[string]Settings{registry.host: {}}}
			if c.named {
				cfg.Settings[registry.host] = Settings{TokenHosts: []string{elsewhere.host}}
			}
			cl := client(t, cfg, registry.host, fmt.Sprintf("ca = %q\nclient = %q", dir+"/ca.pem", dir+"/client.pem"))
			_, err := repository(t, cl, registry.host, Auth{}).Fetch(t.Context(), blob)
			must(t, err)
			registry.shown(t, true)
			elsewhere.shown(t, c.shown)
		})
	}
}

// Where a host that is not verified sends us is verified, unless it is a named token service.
func TestSkipVerifyIsForItsHostAlone(t *testing.T) {
	registry, elsewhere := newSecure(t), newSecure(t)
	blob := registry.has([]byte("blob"))
	tokenFrom(registry, elsewhere)
	fetch := func(hosts string, s Settings) error {
		c := client(t, Config{Settings: map[string]Settings{registry.host: s}}, registry.host, hosts)
		_, err := repository(t, c, registry.host, Auth{}).Fetch(t.Context(), blob)
		return err
	}
	if err := fetch("skip_verify = true", Settings{}); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "not verified of "+registry.host+" alone") {
		t.Errorf("a token service that is not configured: %v", err)
	}
	if n := len(elsewhere.asked()); n != 0 {
		t.Errorf("%d requests to an unverified host", n)
	}
	must(t, fetch("skip_verify = true", Settings{TokenHosts: []string{elsewhere.host}}))
	must(t, fetch("skip_verify = true\nca = '"+testCertificate(t)+"/ca.pem'", Settings{}))
	must(t, fetch("", Settings{InsecureSkipVerify: true, TokenHosts: []string{elsewhere.host}}))
}

func TestSameHost(t *testing.T) {
	for host, urls := range map[string]map[string]bool{
		"r.example": {
			"https://r.example/": true, "https://R.EXAMPLE:443/": true, "https://r.example:80": false,
			"https://r.example:5000": false, "https://s.r.example": false, "https://": false,
		},
		"r.example:443":  {"https://r.example": true, "http://r.example": false},
		"r.example:5000": {"https://r.example:5000/x?y": true, "https://r.example": false},
		"[::1]:5000":     {"https://[::1]:5000": true, "https://[::1]": false, "https://[::2]:5000": false},
	} {
		for text, want := range urls {
			u, err := url.Parse(text)
			must(t, err)
			if got := sameHost(u, host); got != want {
				t.Errorf("%s at %s: %v", text, host, got)
			}
		}
	}
}
