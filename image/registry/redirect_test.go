package registry

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// From HTTPS to HTTP only what a digest names may be redirected, and no credentials go along,
// however many redirects follow.
func TestRedirectToHTTP(t *testing.T) {
	plain := newFake(t)
	plain.intercept = func(w http.ResponseWriter, r *http.Request) (done bool) {
		if r.URL.RawQuery == "" {
			http.Redirect(w, r, "http://"+plain.host()+r.URL.Path+"?again", http.StatusTemporaryRedirect)
		}
		return r.URL.RawQuery == ""
	}
	blob := plain.has([]byte(`{"schemaVersion":2}`))
	plain.mu.Lock()
	plain.blobs["latest"] = []byte(`{"schemaVersion":2}`)
	plain.mu.Unlock()
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			challenge(w, `Basic realm="r"`)
			return
		}
		http.Redirect(w, r, "http://"+plain.host()+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(secure.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	host := hostPort(t, secure.URL)
	c := client(t, Config{Settings: map[string]Settings{host: {CAFile: ca}}}, "", "")
	r := repository(t, c, host, Auth{Username: "u", Password: "p"})

	if _, _, err := r.Resolve(t.Context(), "latest"); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "from HTTPS to HTTP") {
		t.Errorf("a tag: %v", err)
	}
	if n := len(plain.asked()); n != 0 {
		t.Errorf("%d requests in plain text for a tag", n)
	}
	if _, _, err := r.Resolve(t.Context(), blob.Digest.String()); err != nil {
		t.Errorf("a manifest by digest: %v", err)
	}
	if _, err := r.Fetch(t.Context(), blob); err != nil {
		t.Errorf("a blob: %v", err)
	}
	if n := len(plain.asked()); n != 4 {
		t.Errorf("%d requests in plain text, of which each second one is redirected", n)
	}
	for _, req := range plain.asked() {
		if req.Header.Get("Authorization") != "" {
			t.Errorf("%s brought the credentials in plain text", req.URL)
		}
	}
}

func TestRedirectWithoutEnd(t *testing.T) {
	f := newFake(t)
	f.intercept = func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	_, _, err := repository(t, client(t, Config{}, "", ""), f.host(), Auth{}).Resolve(t.Context(), "latest")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "redirected more than") || len(f.asked()) > maxRedirects+2 {
		t.Errorf("%v after %d requests", err, len(f.asked()))
	}
}
