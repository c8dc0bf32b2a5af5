package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// connectProxy is an HTTP proxy that takes every connection to one address, and notes
// where clients wanted to go.
func connectProxy(t *testing.T, to string) (proxy string, asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var hosts []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
			return
		}
		mu.Lock()
		hosts = append(hosts, r.Host)
		mu.Unlock()
		up, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer up.Close()
		w.WriteHeader(http.StatusOK)
		down, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer down.Close()
		go func() {
			_, _ = io.Copy(up, down)
			_ = up.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(down, up)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(hosts)
	}
}

// A registry whose name no one here can resolve is reached through the proxy of the
// daemon's environment.
func TestProxy(t *testing.T) {
	g := newGuarded(t)
	proxy, asked := connectProxy(t, g.Addr)
	const name = "registry.example:5000"
	n := newNode(t, testkit.Options{
		Config: g.hosts(t, name, "skip_verify = true") + fmt.Sprintf("[image.registry.%q]\ntoken_hosts = [%q]\n", name,
			hostOf(t, g.tokens.Realm)),
		Env: []string{"HTTPS_PROXY=" + proxy},
	})
	_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: name + "/" + g.ref},
		Auth:  &cri.AuthConfig{Username: "user", Password: "secret"},
	})
	if err != nil {
		t.Error(err)
	}
	if hosts := asked(); !slices.Contains(hosts, name) {
		t.Errorf("the proxy was asked for %q", hosts)
	}
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
