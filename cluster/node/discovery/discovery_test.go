package discovery

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/cluster-bootstrap/token/jws"
)

const id, secret = "abcdef", "0123456789abcdef"

// answering is a server that answers each request with what answer writes, and how it is asked.
func answering(t *testing.T, answer http.HandlerFunc) (Given, *rest.Config) {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	return Given{Server: server.URL, Token: id + "." + secret},
		&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// When cluster-info has changed, its signature is of the old content until the signer has run.
func TestAnOldSignature(t *testing.T) {
	sign := func(content string) string {
		signature, err := jws.ComputeDetachedSignature(content, id, secret)
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
	old, now := sign("old"), sign("new")
	var answers atomic.Int32
	g, config := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		signature := now
		if answers.Add(1) == 1 {
			signature = old
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			Data:     map[string]string{"kubeconfig": "new", "jws-kubeconfig-" + id: signature},
		}); err != nil {
			t.Error(err)
		}
	})
	if text, err := g.signed(t.Context(), config); text != "new" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// A server that answers slowly can be reached: the token is what is wrong.
func TestASlowServerThatDoesNotKnowTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := Given{Server: "https://192.0.2.1:6443", Token: "abcdef.0123456789abcdef"}
		config := &rest.Config{Host: g.Server, Timeout: call, Transport: slow(signedWithin + time.Second)}
		if _, err := g.signed(t.Context(), config); err == nil || !strings.Contains(err.Error(), "does not know token abcdef") {
			t.Error(err)
		}
	})
}

// slow is a server without tokens that takes its time.
type slow time.Duration

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(time.Duration(s)):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.WriteString(`{"kind":"ConfigMap","apiVersion":"v1"}`)
	return w.Result(), nil
}

func TestAnAnswerThatIsTooLong(t *testing.T) {
	g, config := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		piece := bytes.Repeat([]byte(" "), 1<<20)
		for range 2 * longestAnswer / len(piece) {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	if _, err := g.signed(t.Context(), config); err == nil || !strings.Contains(err.Error(), "answers with more than 4194304 bytes") {
		t.Error(err)
	}
}

func TestKubeconfigsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "of 0 clusters", "clusters: [{name: a, cluster: {}}, {name: b, cluster: {}}]": "of 2 clusters", "{": "no kubeconfig:",
	} {
		_, err := Given{Server: "x"}.authority(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// A holder of the token can publish its own authority next to the cluster's.
func TestOnlyAuthoritiesWithAGivenHashAreTrusted(t *testing.T) {
	real, other, third := authorityPEM(t), authorityPEM(t), authorityPEM(t)
	published := func(ca ...[]byte) string {
		config := clientcmdapi.NewConfig()
		config.Clusters[""] = &clientcmdapi.Cluster{CertificateAuthorityData: bytes.Join(ca, nil)}
		text, err := clientcmd.Write(*config)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	given := func(ca ...[]byte) Given {
		hash, err := Hash(bytes.Join(ca, nil))
		if err != nil {
			t.Fatal(err)
		}
		return Given{Server: "x", Hashes: strings.Split(hash, ",")}
	}
	for name, c := range map[string]struct {
		given     Given
		published string
		want      []byte
	}{
		"one":                 {given(real), published(real), real},
		"another one after":   {given(real), published(real, other), real},
		"another one before":  {given(real), published(other, real), real},
		"two hashes of three": {given(real, other), published(real, third, other), append(bytes.Clone(real), other...)},
		"none":                {given(real), published(other), nil},
	} {
		got, err := c.given.authority(c.published)
		if !bytes.Equal(got, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func authorityPEM(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "kubernetes"}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Raw})
}

func TestAddressesThatAreRefused(t *testing.T) {
	g := Given{Token: id + "." + secret, Hashes: []string{"sha256:" + strings.Repeat("0", 64)}}
	for server, want := range map[string]bool{
		"https://10.0.0.1:6443": true, "https://[fd00::1]:6443/": true, "https://:6443": false, "https://a:99999": false, "https://a:0": false,
		"https://a": false, "https://me@a:6443": false, "https://a:6443?x=y": false, "https://a:6443?": false, "https://a:6443#b": false,
		"https://a:6443/b": false, "http://a:6443": false,
	} {
		g.Server = server
		if err := g.Check(); (err == nil) != want {
			t.Errorf("%s: %v", server, err)
		}
	}
}
