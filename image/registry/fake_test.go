package registry

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fake is a server that has blobs, and everything else where a test says so.
type fake struct {
	*httptest.Server
	intercept func(w http.ResponseWriter, r *http.Request) (done bool)

	mu       sync.Mutex
	blobs    map[string][]byte // by the end of the path
	requests []*http.Request
}

func newFake(t testing.TB) *fake {
	f := &fake{blobs: map[string][]byte{}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.Clone(r.Context()))
	data, ok := f.blobs[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
	f.mu.Unlock()
	if f.intercept != nil && f.intercept(w, r) {
		return
	}
	if !ok {
		http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN"}]}`, http.StatusNotFound)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func (f *fake) host() string { return f.Listener.Addr().String() }

// has puts a blob there, and says how it is asked for.
func (f *fake) has(data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blobs[d.String()] = data
	return ocispec.Descriptor{Digest: d, Size: int64(len(data))}
}

// asked are the requests so far.
func (f *fake) asked() []*http.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

// client makes a client; hosts, if not empty, is the hosts.toml of registry.
func client(t testing.TB, cfg Config, registry, hosts string) *Client {
	t.Helper()
	if hosts != "" {
		dir := t.TempDir()
		must(t, os.Mkdir(filepath.Join(dir, registry), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, registry, "hosts.toml"), []byte(hosts), 0o600))
		cfg.CertsDirs = []string{dir}
	}
	c, err := NewClient(cfg)
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func repository(t testing.TB, c *Client, registry string, a Auth) *Repository {
	t.Helper()
	r, err := c.Repository(registry, "team/app", a)
	must(t, err)
	return r
}

// memory is a File.
type memory struct {
	mu      sync.Mutex
	data    []byte
	arrived int64
	falls   int // how often Arrived went back
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if need := off + int64(len(p)); need > int64(len(m.data)) {
		m.data = append(m.data, make([]byte, need-int64(len(m.data)))...)
	}
	return copy(m.data[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return bytes.NewReader(m.data).ReadAt(p, off)
}

func (m *memory) Arrived(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n < m.arrived {
		m.falls++
	}
	m.arrived = n
}

func ignore(int64) {}

func hostPort(t testing.TB, u string) string {
	t.Helper()
	p, err := url.Parse(u)
	must(t, err)
	return p.Host
}

func challenge(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("WWW-Authenticate", fmt.Sprintf(format, args...))
	w.WriteHeader(http.StatusUnauthorized)
}
