package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cluster/pki"
)

// nextTo returns a member that has never been started, and knows of another one at a URL.
func nextTo(t *testing.T, b *pki.Bundle, url string) *testMember {
	t.Helper()
	one := newTestMember(t, "one", b)
	p := Peers{Name: "one", URL: one.url, Cluster: map[string]string{"one": one.url, "two": url}, Force: true}
	if err := p.Write(one.dir); err != nil {
		t.Fatal(err)
	}
	return one
}

// closedPort returns an address of loopback where nothing listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Regression: a check that was interrupted found no one, as did one with bad credentials.
func TestForceThatCannotAsk(t *testing.T) {
	b := testBundle(t)
	one := nextTo(t, b, "https://"+closedPort(t))
	if err := CheckForce(t.Context(), one.options()); err != nil {
		t.Errorf("no other member runs: %v", err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CheckForce(interrupted, one.options()); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted check: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Options){
		"no pair":               func(o *Options) { o.PeerPair = filepath.Join(one.dir, "missing") },
		"an empty pair":         func(o *Options) { o.PeerPair = empty },
		"no authority of APIs":  func(o *Options) { o.APIPort, o.APICA = 1, filepath.Join(one.dir, "missing") },
		"an empty one of those": func(o *Options) { o.APIPort, o.APICA = 1, empty },
	} {
		o := one.options()
		spoil(&o)
		if err := CheckForce(t.Context(), o); err == nil || !strings.Contains(err.Error(), "cannot be asked") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Regression: a machine that accepts connections but cannot be understood counted as gone, such as
// when a certificate had expired.
func TestForceNextToAnswersNotUnderstood(t *testing.T) {
	b := testBundle(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "no TLS")
			_ = conn.Close()
		}
	}()
	garbled := nextTo(t, b, "https://"+l.Addr().String())
	garbled.refusesForce(t, "and is a quorum together with this one")

	other := newTestMember(t, "two", testBundle(t))
	if err := (Peers{Name: "two", URL: other.url}).Write(other.dir); err != nil {
		t.Fatal(err)
	}
	other.mustStart(t)
	defer other.Close()
	one := nextTo(t, b, other.url)
	one.refusesForce(t, "certificate")
}

// apiServer answers as an API server of the cluster, and says whether it is ready.
func apiServer(t *testing.T, b *pki.Bundle, status int) (port int) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(b.Serving, b.Serving)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			status = http.StatusNotFound
		}
		w.WriteHeader(status)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

// Regression: a member that had gone on alone, and was started again, has no port for peers, and
// another one of the old cluster could go on alone next to it. So it could at its next start, if
// the order was older than the other's.
func TestForceNextToALoneMember(t *testing.T) {
	b, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:6443", []string{"127.0.0.1", "kubernetes.default.svc"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		of     *pki.Bundle
		status int
		want   string
	}{
		"it is ready":       {b, http.StatusOK, "runs the cluster without this machine"},
		"it starts":         {b, http.StatusInternalServerError, "it is not ready"},
		"another authority": {testBundle(t), http.StatusOK, "may run the cluster without this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			one := nextTo(t, b, "https://"+closedPort(t))
			o := one.options()
			o.APICA, o.APIPort = b.CACert, apiServer(t, c.of, c.status)
			if err := CheckForce(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the check: %v, want %q", err, c.want)
			}
			s, err := Start(t.Context(), o)
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the start: %v, want %q", err, c.want)
			}
			if p, err := ReadPeers(one.dir); err != nil || p.Force {
				t.Errorf("the next start would check again: %+v, %v", p, err)
			}
		})
	}
}

// Regression: reading the members from a database that was cut ended the process, and those of one
// that has no others were taken from a list that may be years old.
func TestForceReadsTheDatabase(t *testing.T) {
	b := testBundle(t)
	two := newTestMember(t, "two", b)
	if err := (Peers{Name: "two", URL: two.url}).Write(two.dir); err != nil {
		t.Fatal(err)
	}
	two.mustStart(t)
	defer two.Close()

	one := newTestMember(t, "one", b)
	old := Peers{Name: "one", URL: one.url}
	if err := old.Write(one.dir); err != nil {
		t.Fatal(err)
	}
	one.mustStart(t)
	one.Close()
	old.Cluster = map[string]string{"one": one.url, "two": two.url}
	if err := old.Write(one.dir); err != nil {
		t.Fatal(err)
	}
	if err := CheckForce(t.Context(), one.options()); err != nil {
		t.Errorf("of a member that left long ago: %v", err)
	}
	if err := os.Truncate(filepath.Join(one.dir, "etcd", "member", "snap", "db"), 8192); err != nil {
		t.Fatal(err)
	}
	one.refusesForce(t, "damaged")
}
