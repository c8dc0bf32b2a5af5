package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/faultproxy"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// guarded is a registry with TLS that sends its clients to a token service, with an
// image in it, and what a daemon needs to know of it.
type guarded struct {
	*testkit.Registry
	tokens    *testkit.TokenServer
	way       *faultproxy.Proxy // to the token service
	cert, key string
	transport *http.Transport
	built     ociimage.Built
	ref       string // of the image, without the registry
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{ref: "team/app:1"}
	cert, key, pool := selfSigned(t)
	g.cert, g.key = cert, key
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	g.transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	g.tokens = testkit.StartTokenServer(t, cert, key, map[string]string{"user": "secret"})
	g.way = faultproxy.Start(t, pair, g.tokens.URL, g.transport)
	g.tokens.Realm = g.way.URL + "/token"
	g.Registry = testkit.StartRegistry(t, testkit.RegistryOptions{Cert: cert, Key: key, Tokens: g.tokens})
	t.Cleanup(g.transport.CloseIdleConnections)
	noise := make([]byte, 300_000) // that no compression makes small
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	g.built = build(t, ociimage.File{Path: "noise", Mode: 0o644, Data: noise})
	err = ociimage.Push(context.Background(), g.Addr+"/"+g.ref, g.built, ociimage.Registry{
		Username: "user", Password: "secret", Client: &http.Client{Transport: g.transport},
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// hosts writes a certs_dirs with a hosts.toml for a registry, and says so in a
// daemon's configuration. text may name ca.pem.
func (g *guarded) hosts(t *testing.T, registry, text string) (config string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, registry), 0o755); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(g.cert)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, registry, "ca.pem"), string(ca))
	writeFile(t, filepath.Join(dir, registry, "hosts.toml"), text)
	return fmt.Sprintf("[image]\ncerts_dirs = [%q]\n", dir)
}

// is says what a request of a pull is for: token, manifest, config or layer.
func (g *guarded) is(r *http.Request) string {
	switch {
	case r.URL.Path == "/token":
		return "token"
	case strings.Contains(r.URL.Path, "/manifests/"):
		return "manifest"
	case slices.ContainsFunc(g.built.Order, func(d ocispec.Descriptor) bool {
		return d.MediaType == ocispec.MediaTypeImageConfig && strings.HasSuffix(r.URL.Path, d.Digest.String())
	}):
		return "config"
	}
	return "layer"
}

func TestTokenAuthentication(t *testing.T) {
	g := newGuarded(t)
	n := newNode(t, testkit.Options{Config: g.hosts(t, g.Addr, `ca = "ca.pem"`)})
	n.warm()
	check := n.noLeaks()
	spec := &cri.ImageSpec{Image: g.Addr + "/" + g.ref}
	good := map[string]*cri.AuthConfig{
		"password":       {Username: "user", Password: "secret"},
		"identity token": {IdentityToken: "refresh-user"},
	}
	for name, auth := range map[string]*cri.AuthConfig{
		"none":                 nil,
		"wrong password":       {Username: "user", Password: "guess"},
		"wrong identity token": {IdentityToken: "refresh-nobody"},
		"wrong registry token": {RegistryToken: "forged"},
		"for another server":   {Username: "user", Password: "secret", ServerAddress: "registry.example"},
	} {
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: auth})
		wantCode(t, "pull with "+name, err, "Unauthenticated")
		if err != nil && (strings.Contains(err.Error(), "guess") || strings.Contains(err.Error(), "forged")) {
			t.Errorf("%s: the error repeats the secret: %v", name, err)
		}
		check()
	}
	for name, auth := range good {
		before := len(g.tokens.Asked())
		if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: auth}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if asked := g.tokens.Asked()[before:]; len(asked) != 1 {
			t.Errorf("%s: asked for tokens %q, want one for the whole pull", name, asked)
		}
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: spec}); err != nil {
			t.Error(err)
		}
		check()
	}
	if !slices.Contains(g.tokens.Asked(), "refresh") {
		t.Errorf("asked %q", g.tokens.Asked())
	}
}

func TestClientCertificates(t *testing.T) {
	cert, key, pool := selfSigned(t)
	r := testkit.StartRegistry(t, testkit.RegistryOptions{Cert: cert, Key: key, ClientCA: cert})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(transport.CloseIdleConnections)
	g := &guarded{cert: cert, built: build(t, ociimage.File{Path: "x", Mode: 0o644}), ref: "team/app:1"}
	if err := ociimage.Push(context.Background(), r.Addr+"/"+g.ref, g.built,
		ociimage.Registry{Client: &http.Client{Transport: transport}}); err != nil {
		t.Fatal(err)
	}
	for text, code := range map[string]string{
		`ca = "ca.pem"`: "Unavailable",
		fmt.Sprintf("ca = \"ca.pem\"\nclient = [[%q, %q]]", cert, key):    "OK",
		fmt.Sprintf("skip_verify = true\nclient = [[%q, %q]]", cert, key): "OK",
		fmt.Sprintf("client = [[%q, %q]]", cert, key):                     "Unavailable",
	} {
		n := newNode(t, testkit.Options{Config: g.hosts(t, r.Addr, text)})
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: r.Addr + "/" + g.ref}})
		wantCode(t, text, err, code)
	}
}

// Every fault of a registry, each on each kind of request: either the pull gets over it,
// or it fails with the right kind; then nothing is left of it, and without the fault the
// image comes.
func TestRegistryFaults(t *testing.T) {
	g := newGuarded(t)
	pair, err := tls.LoadX509KeyPair(g.cert, g.key)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.Start(t, pair, "https://"+g.Addr, g.transport)
	n := newNode(t, testkit.Options{Config: g.hosts(t, proxy.Host(), `ca = "ca.pem"`)})
	pull := &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: proxy.Host() + "/" + g.ref},
		Auth:  &cri.AuthConfig{Username: "user", Password: "secret"},
	}
	n.warm()
	check := n.noLeaks()
	remove := func() {
		t.Helper()
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: pull.GetImage()}); err != nil {
			t.Error(err)
		}
		check()
	}
	const always = 1 << 30
	for _, c := range []struct {
		name  string
		fault faultproxy.Fault
		times int32
		// code of the failure by what is asked for; OK where a pull gets over it.
		token, manifest, config, layer string
	}{
		{"429 twice", faultproxy.Fault{Status: 429, RetryAfter: "0"}, 2, "OK", "OK", "OK", "OK"},
		{"429 with a date", faultproxy.Fault{Status: 429, RetryAfter: "Thu, 01 Jan 2026 00:00:00 GMT"}, 1, "OK", "OK", "OK", "OK"},
		{
			"429 for an hour",
			faultproxy.Fault{Status: 429, RetryAfter: "3600"},
			always, "Unavailable", "Unavailable", "Unavailable",
			"Unavailable",
		},
		{"429 for ever", faultproxy.Fault{Status: 429}, always, "Unavailable", "Unavailable", "Unavailable", "Unavailable"},
		{"500 once", faultproxy.Fault{Status: 500}, 1, "OK", "OK", "OK", "OK"},
		{"503 for ever", faultproxy.Fault{Status: 503}, always, "Unavailable", "Unavailable", "Unavailable", "Unavailable"},
		{"408 once", faultproxy.Fault{Status: 408}, 1, "OK", "OK", "OK", "OK"},
		{"400", faultproxy.Fault{Status: 400}, always, "Unavailable", "Unavailable", "Unavailable", "Unavailable"},
		{"403", faultproxy.Fault{Status: 403}, always, "Unauthenticated", "Unauthenticated", "Unauthenticated", "Unauthenticated"},
		{"404", faultproxy.Fault{Status: 404}, always, "Unavailable", "NotFound", "NotFound", "NotFound"},
		{"reset once", faultproxy.Fault{Reset: true}, 1, "OK", "OK", "OK", "OK"},
		{"reset for ever", faultproxy.Fault{Reset: true}, always, "Unavailable", "Unavailable", "Unavailable", "Unavailable"},
		{"delay", faultproxy.Fault{Delay: 100 * time.Millisecond}, always, "OK", "OK", "OK", "OK"},
		{"cut once", faultproxy.Fault{Break: faultproxy.Cut, At: 100}, 1, "OK", "OK", "OK", "OK"},
		{"cut again and again", faultproxy.Fault{Break: faultproxy.Cut, At: 100_000}, 2, "OK", "OK", "OK", "OK"},
		{
			"cut at once for ever",
			faultproxy.Fault{Break: faultproxy.Cut, At: 0},
			always, "Unavailable", "Unavailable", "Unavailable",
			"Unavailable",
		},
		{"truncated", faultproxy.Fault{Break: faultproxy.Truncate, At: 100}, 1, "OK", "InvalidArgument", "InvalidArgument", "OK"},
		{
			"truncated to nothing",
			faultproxy.Fault{Break: faultproxy.Truncate, At: 0},
			always, "Unavailable", "InvalidArgument", "InvalidArgument",
			"InvalidArgument",
		},
		{
			"corrupt",
			faultproxy.Fault{Break: faultproxy.Corrupt, At: 100},
			always, "Unauthenticated", "InvalidArgument", "InvalidArgument",
			"InvalidArgument",
		},
		{"corrupt near the end", faultproxy.Fault{Break: faultproxy.Corrupt, At: 250_000}, always, "OK", "OK", "OK", "InvalidArgument"},
	} {
		for kind, code := range map[string]string{"token": c.token, "manifest": c.manifest, "config": c.config, "layer": c.layer} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				var left atomic.Int32
				left.Store(c.times)
				fault := func(r *http.Request) faultproxy.Fault {
					if r.Header.Get("Authorization") == "" || g.is(r) != kind || left.Add(-1) < 0 {
						return faultproxy.Fault{}
					}
					return c.fault
				}
				proxy.Set(fault)
				g.way.Set(fault)
				_, err := n.Images.PullImage(n.ctx(), pull)
				wantCode(t, "pull", err, code)
				proxy.Set(nil)
				g.way.Set(nil)
				if code != "OK" {
					check()
					if _, err := n.Images.PullImage(n.ctx(), pull); err != nil {
						t.Errorf("without the fault: %v", err)
					}
				}
				remove()
			})
		}
	}
}

// A caller that goes away stops the pull at once, wherever it is, and leaves nothing.
func TestCancelledPull(t *testing.T) {
	g := newGuarded(t)
	pair, err := tls.LoadX509KeyPair(g.cert, g.key)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.Start(t, pair, "https://"+g.Addr, g.transport)
	n := newNode(t, testkit.Options{Config: g.hosts(t, proxy.Host(), `ca = "ca.pem"`)})
	n.warm()
	check := n.noLeaks()
	for _, kind := range []string{"manifest", "config", "layer"} {
		ctx, cancel := context.WithCancel(n.ctx())
		gone := make(chan struct{})
		proxy.Set(func(r *http.Request) faultproxy.Fault {
			if r.Header.Get("Authorization") != "" && g.is(r) == kind {
				cancel()
				<-r.Context().Done() // the daemon hangs up
				close(gone)
			}
			return faultproxy.Fault{}
		})
		_, err := n.Images.PullImage(ctx, &cri.PullImageRequest{
			Image: &cri.ImageSpec{Image: proxy.Host() + "/" + g.ref},
			Auth:  &cri.AuthConfig{Username: "user", Password: "secret"},
		})
		wantCode(t, "pull cancelled at the "+kind, err, "Canceled")
		<-gone
		eventually(t, "nothing to be left", func() bool {
			l, err := n.Images.ListImages(n.ctx(), &cri.ListImagesRequest{})
			return err == nil && len(l.GetImages()) == 0
		})
		check()
		cancel()
	}
}
