package apiserver

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/coracle-project/coracle/cluster/pki"
)

// Regression: the first exec after a rotation failed, "use of closed network connection".
func TestReloadKubeletClient(t *testing.T) {
	dir := t.TempDir()
	ensure := func() (*pki.Bundle, tls.Certificate) {
		t.Helper()
		bundle, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(bundle.KubeletClient, bundle.KubeletClient)
		if err != nil {
			t.Fatal(err)
		}
		return bundle, pair
	}
	bundle, before := ensure()
	serving, err := tls.LoadX509KeyPair(bundle.Serving, bundle.Serving)
	if err != nil {
		t.Fatal(err)
	}
	var seen []byte
	kubelet := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = r.TLS.PeerCertificates[0].Raw
	}))
	kubelet.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequireAnyClientCert}
	kubelet.StartTLS()
	defer kubelet.Close()
	config := KubeletClient(bundle)
	transport, err := kubeletclient.MakeTransport(&config)
	if err != nil {
		t.Fatal(err)
	}
	call := func(want tls.Certificate) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, kubelet.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true // each call makes a connection, as exec does
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); !bytes.Equal(seen, want.Certificate[0]) {
			t.Error("the kubelet sees another certificate than that in the file")
		}
	}
	call(before)
	if err := reloadKubeletClient(config); err != nil { // nothing has changed
		t.Error(err)
	}
	for range 2 {
		if err := pki.Rotate(dir, pki.What{Certificates: true}); err != nil {
			t.Fatal(err)
		}
		_, after := ensure()
		if bytes.Equal(after.Certificate[0], before.Certificate[0]) {
			t.Fatal("the certificate is not replaced")
		}
		if err := reloadKubeletClient(config); err != nil {
			t.Fatal(err)
		}
		call(after)
		before = after
	}
}
