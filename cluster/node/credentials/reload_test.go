package credentials

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/pki"
)

// Regression: after the trust in a former authority had ended, connections still showed its
// certificate for up to five minutes, and the API server refused all requests of the node.
func TestReload(t *testing.T) {
	keys, dir := t.TempDir(), t.TempDir()
	b, _ := published(t, keys, pki.What{})
	files := must(b.Node("two", []string{"192.0.2.2"}))(t)
	serving := must(tls.LoadX509KeyPair(b.Serving, b.Serving))(t)
	var shown atomic.Pointer[string]
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw := string(r.TLS.PeerCertificates[0].Raw)
		shown.Store(&raw)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequireAnyClientCert}
	api.EnableHTTP2 = true
	api.StartTLS()
	defer api.Close()
	take := func(from, to string) {
		t.Helper()
		if err := pki.Replace(to, must(os.ReadFile(from))(t), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node := Node{Version: fileVersion, Server: api.URL, Name: "two", dir: dir}
	take(b.CACert, node.CAFile())
	take(files.Client, node.clientFile())
	if err := os.WriteFile(filepath.Join(dir, "cluster.json"), must(json.Marshal(node))(t), 0o600); err != nil {
		t.Fatal(err)
	}
	node = must(Read(dir, nil))(t)
	all := must(node.Servers())(t)

	// Those of an agent: for the settings, informers, all else, and one that copies the last.
	through := node.Through(all)
	through.ServerName = ""
	informers := must(kubernetes.NewForConfig(through))(t)
	set := must(client.New(through, client.NewInformers(informers), nil))(t)
	clients := []kubernetes.Interface{
		must(kubernetes.NewForConfig(node.config()))(t), informers, set.Kube,
		must(kubernetes.NewForConfig(rest.CopyConfig(set.Config)))(t),
	}
	check := func() {
		t.Helper()
		want := string(must(tls.LoadX509KeyPair(node.clientFile(), node.clientFile()))(t).Certificate[0])
		for i, kube := range clients {
			if _, err := kube.Discovery().ServerVersion(); err != nil {
				t.Fatal(err)
			}
			if *shown.Load() != want {
				t.Errorf("client %d shows another certificate than that in the file", i)
			}
		}
	}
	check()
	b, _ = published(t, keys, pki.What{Authority: true})
	take(must(b.Node("two", []string{"192.0.2.2"}))(t).Client, node.clientFile())
	if err := node.reload(); err != nil {
		t.Fatal(err)
	}
	check()
}
