package image

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/internal/testkit"
)

func bigLayer() testLayer { return plainLayer(tarOf("big", strings.Repeat("0123456789", 100_000))) }

// breaking makes the registry break off the first n answers with a layer after some
// bytes, and then serve it whole.
func breaking(r *fakeRegistry, layer digest.Digest, n int32, ranges bool) (ranged *atomic.Int32) {
	ranged = new(atomic.Int32)
	var left atomic.Int32
	left.Store(n)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, string(layer)) {
			return false
		}
		if req.Header.Get("Range") != "" {
			ranged.Add(1)
		}
		if !ranges {
			req.Header.Del("Range")
		}
		if left.Add(-1) < 0 {
			return false
		}
		http.ServeContent(&breakingWriter{ResponseWriter: w, left: 200_000}, req, "", time.Time{}, strings.NewReader(string(r.blobs[layer])))
		panic(http.ErrAbortHandler)
	}
	return ranged
}

// breakingWriter swallows all but the first bytes.
type breakingWriter struct {
	http.ResponseWriter
	left int
}

func (b *breakingWriter) Write(p []byte) (int, error) {
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	b.left -= n
	if b.left == 0 {
		b.ResponseWriter.(http.Flusher).Flush()
		return n, errors.New("broken off")
	}
	return n, err
}

func TestDownloadResumes(t *testing.T) {
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprint("ranges ", ranges), func(t *testing.T) {
			r, s := newFake(t), openStore(t, nil)
			p := r.image("app:1", []testLayer{bigLayer()}, nil)
			ranged := breaking(r, p.layers[0], 2, ranges)
			var done, total int64
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Progress: func(d, n int64) { done, total = d, n }})
			must(t, err)
			if ranged.Load() != 2 || done != total {
				t.Errorf("%d range requests, progress %d of %d", ranged.Load(), done, total)
			}
			if got := len(s.content(t, p.diffIDs[0], "big")); got != 1_000_000 {
				t.Errorf("file has %d bytes", got)
			}
		})
	}
}

func TestDownloadGivesUp(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if strings.HasSuffix(req.URL.Path, string(p.layers[0])) {
			panic(http.ErrAbortHandler)
		}
		return false
	}
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	if !errors.Is(err, ErrUnavailable) || s.left(t) != nothingLeft {
		t.Errorf("error %v, left %s", err, s.left(t))
	}
	if n := r.asked(string(p.layers[0])); n < 2 || n > 2*5 {
		t.Errorf("asked %d times", n) // net/http itself repeats a GET on a reused connection
	}
}

func TestServerErrorsAreRetried(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	var seen sync.Map // by path: a count of all requests would not say how often each one fails
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if _, again := seen.LoadOrStore(req.URL.Path, true); !again {
			refuse(w, http.StatusServiceUnavailable, "BUSY")
			return true
		}
		return false
	}
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
}

func TestSilentRegistry(t *testing.T) {
	for name, after := range map[string]string{"before the manifest": "/manifests/", "in a blob": "/blobs/"} {
		t.Run(name, func(t *testing.T) {
			r := newFake(t)
			s := openStore(t, func(c *Config) { c.Registries.StallTimeout = 50 * time.Millisecond })
			r.image("app:1", []testLayer{bigLayer()}, nil)
			r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
				if !strings.Contains(req.URL.Path, after) {
					return false
				}
				if after == "/blobs/" {
					_, _ = w.Write([]byte("{"))
					w.(http.Flusher).Flush()
				}
				<-req.Context().Done()
				return true
			}
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			if !errors.Is(err, ErrUnavailable) || s.left(t) != nothingLeft {
				t.Errorf("error %v, left %s", err, s.left(t))
			}
		})
	}
}

// Regression: a registry that drips took all slots, and pulls from others waited; a
// pull that needed the same layer waited for it even with slots left.
func TestSlowRegistryHoldsUpNobodyElse(t *testing.T) {
	slow, fast := newFake(t), newFake(t)
	s := openStore(t, func(c *Config) { c.Registries.MaxConcurrentDownloads = 1 })
	img := slow.image("app:1", threeLayers(), nil)
	fast.image("app:1", threeLayers(), nil)
	stuck, end := make(chan struct{}, 10), make(chan struct{})
	slow.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if slices.Contains(img.layers, digest.Digest(path.Base(req.URL.Path))) {
			stuck <- struct{}{}
			<-end
		}
		return false
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), slow.ref("app:1"), PullOptions{})
		done <- err
	}()
	<-stuck
	_, err := s.Pull(t.Context(), fast.ref("app:1"), PullOptions{})
	must(t, err)
	close(end)
	must(t, <-done)
}

func TestBasicAuth(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if u, p, ok := req.BasicAuth(); ok && u == "me" && p == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return true
	}
	for name, a := range map[string]Auth{"none": {}, "wrong": {Username: "me", Password: "guess"}, "no password": {Username: "me"}} {
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: a})
		if !errors.Is(err, ErrUnauthorized) || strings.Contains(err.Error(), "guess") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: Auth{Username: "me", Password: "secret"}})
	must(t, err)
}

func TestBearerAuth(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/token" {
			u, p, _ := req.BasicAuth()
			_ = req.ParseForm()
			if u+p != "mesecret" && req.Form.Get("refresh_token") != "identity" {
				refuse(w, http.StatusUnauthorized, "DENIED")
				return true
			}
			fmt.Fprint(w, `{"token":"good","access_token":"good"}`)
			return true
		}
		if req.Header.Get("Authorization") == "Bearer good" {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:app:pull"`, r.URL))
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return true
	}
	for name, c := range map[string]struct {
		auth Auth
		ok   bool
	}{
		"password":       {Auth{Username: "me", Password: "secret"}, true},
		"identity token": {Auth{IdentityToken: "identity"}, true},
		"registry token": {Auth{RegistryToken: "good"}, true},
		"wrong password": {Auth{Username: "me", Password: "x"}, false},
		"wrong token":    {Auth{RegistryToken: "bad"}, false},
		"none":           {Auth{}, false},
	} {
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: c.auth})
		if c.ok && err != nil || !c.ok && !errors.Is(err, ErrUnauthorized) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if n := r.asked("/token"); n > 6 {
		t.Errorf("%d token requests: tokens are not kept during a pull", n)
	}
}

// Regression: a token service with a private address on another host than the
// registry's could not be used at all.
func TestTokenServiceOnAPrivateAddress(t *testing.T) {
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if u, p, _ := req.BasicAuth(); u+p != "mesecret" || req.URL.Path != "/a/token" || req.FormValue("service") != "s" ||
			req.FormValue("x") != "1" {
			refuse(w, http.StatusUnauthorized, "DENIED")
			return
		}
		fmt.Fprint(w, `{"token":"good"}`)
	}))
	defer tokens.Close()
	_, port, err := net.SplitHostPort(tokens.Listener.Addr().String())
	must(t, err)
	realm := "localhost:" + port // another host name than the registry's 127.0.0.1
	for name, c := range map[string]struct {
		trusted  []string
		password string
		want     string
	}{
		"trusted":        {[]string{"elsewhere", realm}, "secret", ""},
		"wrong password": {[]string{realm}, "guess", "the token request"},
		"other port":     {[]string{"localhost:1"}, "secret", "name it in token_hosts"},
		"not trusted":    {nil, "secret", "name it in token_hosts"},
	} {
		r := newFake(t)
		r.image("app:1", threeLayers(), nil)
		r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
			if req.Header.Get("Authorization") == "Bearer good" {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+realm+`/a/token?x=1",service="s",scope="repository:app:pull"`)
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
			return true
		}
		s := openStore(t, func(c2 *Config) {
			c2.Registries.Settings = map[string]Registry{r.host(): {PlainHTTP: true, TokenHosts: c.trusted}}
		})
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: Auth{Username: "me", Password: c.password}})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Regression: the URL of a blob kept elsewhere, signed, stood in errors and logs.
func TestErrorsDoNotShowSignedURLs(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	r.image("app:1", threeLayers(), nil)
	gone := "http://" + testkit.RefusingAddr(t)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		http.Redirect(w, req, gone+"/blob?X-Signature=hunter2", http.StatusTemporaryRedirect)
		return true
	}
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), gone) {
		t.Errorf("error %v", err)
	}
}

func TestTLS(t *testing.T) {
	r := unstartedFake()
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	r.image("app:1", threeLayers(), nil)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}), 0o600))
	for name, c := range map[string]struct {
		registries map[string]Registry
		want       string
	}{
		"unknown authority":            {map[string]Registry{r.host(): {}}, "ca_file"},
		"loopback by HTTP, then HTTPS": {nil, "ca_file"},
		"insecure":                     {map[string]Registry{r.host(): {InsecureSkipVerify: true}}, ""},
		"CA file":                      {map[string]Registry{r.host(): {CAFile: ca}}, ""},
		"HTTP where HTTPS is spoken":   {map[string]Registry{r.host(): {PlainHTTP: true}}, "400"},
	} {
		s := openStore(t, func(c2 *Config) { c2.Registries.Settings = c.registries })
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	plain := newFake(t)
	s := openStore(t, func(c *Config) { c.Registries.Settings = map[string]Registry{plain.host(): {}} })
	if _, err := s.Pull(t.Context(), plain.ref("app:1"), PullOptions{}); !errors.Is(err, ErrUnavailable) ||
		!strings.Contains(err.Error(), "plain_http") {
		t.Errorf("HTTPS where HTTP is spoken: %v", err)
	}
}

func TestMirrors(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	p := origin.image("app:1", threeLayers(), nil)
	mirror.image("app:1", threeLayers(), nil)
	mirror.mu.Lock()
	delete(mirror.blobs, p.layers[0]) // the mirror is not complete
	mirror.mu.Unlock()
	mirror.intercept = func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Header.Get("Authorization") != "" {
			t.Error("credentials sent to the mirror")
		}
		return false
	}
	s := openStore(t, func(c *Config) {
		c.Registries.Settings = map[string]Registry{origin.host(): {PlainHTTP: true, Mirrors: []string{"http://127.0.0.1:1", mirror.URL}}}
	})
	img, err := s.Pull(t.Context(), origin.ref("app:1"), PullOptions{Auth: Auth{Username: "a", Password: "b"}})
	must(t, err)
	if img.RepoTags[0] != origin.ref("app:1") || mirror.asked("/manifests/") == 0 || origin.asked("/manifests/") != 0 ||
		origin.asked("/blobs/") != 1 {
		t.Errorf("tags %q; mirror %v, origin %v", img.RepoTags, mirror.requests, origin.requests)
	}
	_, err = s.Pull(t.Context(), origin.ref("none:1"), PullOptions{})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "mirrors:") {
		t.Errorf("error %v, want the registry's own with the mirrors' words", err)
	}
}

// A mirror that spoils a layer is found out, by the unpacking or by the digest, and the layer
// comes from the registry itself; an image that is broken everywhere is refused.
func TestMirrorThatSpoilsLayers(t *testing.T) {
	for name, spoil := range map[string]func([]byte){
		"in the middle": func(b []byte) { b[len(b)/2] ^= 0x10 },
		"at the end":    func(b []byte) { b[len(b)-1] ^= 0x10 },
		"altogether":    func(b []byte) { clear(b) },
	} {
		t.Run(name, func(t *testing.T) {
			origin, mirror := newFake(t), newFake(t)
			layer := gzipLayer(tarOf("f", strings.Repeat("0123456789abcdef", 1000)))
			p := origin.image("app:1", []testLayer{layer}, nil)
			mirror.image("app:1", []testLayer{layer}, nil)
			mirror.blobs[p.layers[0]] = slices.Clone(layer.data)
			spoil(mirror.blobs[p.layers[0]])
			s := openStore(t, func(c *Config) {
				c.Registries.Settings = map[string]Registry{origin.host(): {PlainHTTP: true, Mirrors: []string{mirror.URL}}}
			})
			var done, total int64
			_, err := s.Pull(t.Context(), origin.ref("app:1"), PullOptions{Progress: func(d, n int64) { done, total = d, n }})
			must(t, err)
			if done != total || mirror.asked(string(p.layers[0])) != 1 {
				t.Errorf("progress %d of %d; mirror asked %d times", done, total, mirror.asked(string(p.layers[0])))
			}
			must(t, s.Remove(t.Context(), origin.ref("app:1")))

			origin.blobs[p.layers[0]] = mirror.blobs[p.layers[0]]
			_, err = s.Pull(t.Context(), origin.ref("app:1"), PullOptions{})
			if !errors.Is(err, ErrInvalidImage) || s.left(t) != nothingLeft {
				t.Errorf("%v, left %s", err, s.left(t))
			}
		})
	}
}

// A mirror that was found out does not make an image that is itself invalid be fetched forever.
func TestMirrorThatSpoilsAnInvalidImage(t *testing.T) {
	origin, mirror := newFake(t), newFake(t)
	layer := gzipLayer(tarOf("f", "content"))
	layer.tar = []byte("other") // which its diff id is then of
	p := origin.image("app:1", []testLayer{layer}, nil)
	mirror.image("app:1", []testLayer{layer}, nil)
	mirror.blobs[p.layers[0]] = make([]byte, len(layer.data))
	s := openStore(t, func(c *Config) {
		c.Registries.Settings = map[string]Registry{origin.host(): {PlainHTTP: true, Mirrors: []string{mirror.URL}}}
	})
	_, err := s.Pull(t.Context(), origin.ref("app:1"), PullOptions{})
	if n := origin.asked(string(p.layers[0])); !errors.Is(err, ErrInvalidImage) || n != 1 {
		t.Errorf("%v, fetched %d times", err, n)
	}
}
