package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// selfSigned makes a certificate for 127.0.0.1 that is its own authority.
func selfSigned(t testing.TB) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test registry"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, cert, string(certPEM))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return cert, key, pool
}

// htpasswd is "user:secret", bcrypt.
const htpasswd = "user:$2a$05$qkGgVEDUOLLRhgi8JGUtCOvJ3v6Llsv9sexYaIyejBf6z8LY0DLNK\n"

func TestSecureRegistry(t *testing.T) {
	cert, key, pool := selfSigned(t)
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd)
	secure := testkit.StartRegistry(t, testkit.RegistryOptions{Cert: cert, Key: key, Htpasswd: users})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	if err := pushAll(secure.Addr,
		ociimage.Registry{Username: "user", Password: "secret", Client: &http.Client{Transport: transport}}); err != nil {
		t.Fatal(err)
	}
	spec := &cri.ImageSpec{Image: secure.Addr + "/test/busybox:1"}
	good := &cri.AuthConfig{Username: "user", Password: "secret"}

	t.Run("with its authority", func(t *testing.T) {
		n := newNode(t, testkit.Options{Config: fmt.Sprintf("[image.registry.%q]\nca_file = %q\n", secure.Addr, cert)})
		check := n.noLeaks()
		for name, auth := range map[string]*cri.AuthConfig{
			"without credentials": nil,
			"wrong password":      {Username: "user", Password: "wrong"},
			"unknown user":        {Username: "nobody", Password: "secret"},
		} {
			_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: auth})
			wantCode(t, "pull "+name, err, "Unauthenticated")
		}
		check()
		if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: good}); err != nil {
			t.Error(err)
		}
		encoded := &cri.AuthConfig{Auth: "dXNlcjpzZWNyZXQ="} // user:secret, as in a docker config file
		if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: encoded}); err != nil {
			t.Error(err)
		}
	})
	t.Run("unknown authority", func(t *testing.T) {
		n := newNode(t, testkit.Options{})
		check := n.noLeaks()
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: good})
		wantCode(t, "pull", err, "Unavailable")
		check()
	})
	t.Run("verification off", func(t *testing.T) {
		n := newNode(t, testkit.Options{Config: fmt.Sprintf("[image.registry.%q]\ninsecure_skip_verify = true\n", secure.Addr)})
		if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: spec, Auth: good}); err != nil {
			t.Error(err)
		}
	})
}
