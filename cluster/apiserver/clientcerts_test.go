package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/metrics/legacyregistry"
)

// signedBy is a certificate and its key.
type signedBy struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate that is valid for a time from now on, signed by parent, or by itself.
func issue(t *testing.T, name string, parent *signedBy, valid time.Duration) *signedBy {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"group of " + name}},
		NotBefore: time.Now(), NotAfter: time.Now().Add(valid), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	made := &signedBy{key: key}
	from, fromKey := template, key
	if parent != nil {
		from, fromKey = parent.cert, parent.key
	}
	if strings.HasPrefix(name, "ca") {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, from, &key.PublicKey, fromKey)
	if err != nil {
		t.Fatal(err)
	}
	if made.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return made
}

// certificateRequest is a request on a connection whose client has sent these.
func certificateRequest(sent ...*x509.Certificate) *http.Request {
	r, _ := http.NewRequest(http.MethodGet, "https://server/", nil) //nolint:noctx // not sent
	r.TLS = &tls.ConnectionState{PeerCertificates: sent}
	return r
}

// unsigned returns a certificate with the same bytes whose signature would not be found good.
func unsigned(c *x509.Certificate) *x509.Certificate {
	broken := *c
	broken.Signature = slices.Clone(c.Signature)
	broken.Signature[len(broken.Signature)-1] ^= 1
	return &broken
}

func TestClientCertificatesAreVerifiedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := func(authority *signedBy) *x509.CertPool {
			p := x509.NewCertPool()
			p.AddCert(authority.cert)
			return p
		}
		authority := issue(t, "ca", nil, 24*time.Hour)
		between := issue(t, "ca between", authority, 30*time.Minute)
		node, below := issue(t, "node", authority, time.Hour), issue(t, "below", between, time.Hour)
		roots, known := pool(authority), true
		c := newClientCertificates(func() (x509.VerifyOptions, bool) {
			return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, known
		})
		who := func(sent ...*x509.Certificate) user.Info {
			t.Helper()
			response, ok, err := c.AuthenticateRequest(certificateRequest(sent...))
			if ok != (response != nil) || ok && err != nil {
				t.Fatalf("answer %v, %v, %v", response, ok, err)
			}
			if !ok {
				return nil
			}
			if _, ours := response.User.(*verifiedChain); ours {
				t.Error("the times of a chain are given on as a user")
			}
			return response.User
		}
		if who() != nil {
			t.Error("a client without a certificate is known")
		}
		if who(unsigned(node.cert)) != nil {
			t.Fatal("a wrong signature is accepted")
		}
		first := who(node.cert)
		if first == nil || first.GetName() != "node" || !slices.Equal(first.GetGroups(), []string{"group of node"}) ||
			len(first.GetExtra()[user.CredentialIDKey]) != 1 {
			t.Fatalf("the client is %v", first)
		}
		if who(unsigned(node.cert)) == nil {
			t.Error("a certificate is verified again")
		}
		if who(below.cert) != nil {
			t.Error("a chain without the certificate in between is accepted")
		}
		if who(below.cert, between.cert) == nil || who(unsigned(below.cert), between.cert) == nil {
			t.Error("a chain of three is not accepted, or verified again")
		}
		if who(below.cert, node.cert) != nil {
			t.Error("a chain with another certificate in between is accepted")
		}

		time.Sleep(30*time.Minute + time.Second)
		if who(below.cert, between.cert) != nil {
			t.Error("a chain is accepted after the certificate in between has ended")
		}
		if who(node.cert) == nil {
			t.Error("a certificate is refused before it ends")
		}
		time.Sleep(30 * time.Minute)
		if who(node.cert) != nil {
			t.Error("a certificate is accepted after it has ended")
		}

		again := issue(t, "again", authority, time.Hour)
		if who(again.cert) == nil {
			t.Fatal("a second client is refused")
		}
		known = false
		if who(again.cert) != nil {
			t.Error("a certificate is accepted without authorities")
		}
		known, roots = true, pool(issue(t, "ca of others", nil, 24*time.Hour))
		if who(again.cert) != nil {
			t.Error("a certificate of an authority that was replaced is accepted")
		}
		if roots = pool(authority); who(unsigned(again.cert)) != nil {
			t.Error("after the authorities were read again, a certificate is not verified")
		}
	})
}

// certificatesBy authenticates by the certificates of one authority, and returns the pool of it.
func certificatesBy(authority *signedBy) (*clientCertificates, *x509.CertPool) {
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	return newClientCertificates(func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}), roots
}

func TestCertificatesNotYetValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := issue(t, "ca", nil, 24*time.Hour)
		node := issue(t, "node", authority, time.Hour)
		c, roots := certificatesBy(authority)
		if _, ok, err := c.AuthenticateRequest(certificateRequest(node.cert)); !ok || err != nil {
			t.Fatalf("refused: %v", err)
		}
		v, _ := c.verified.Get(chainKey{authorities: roots, sent: digest([]*x509.Certificate{node.cert})})
		v.(*verifiedChain).from = time.Now().Add(time.Minute) // as if the clock had been set back
		if _, ok, _ := c.AuthenticateRequest(certificateRequest(unsigned(node.cert))); ok {
			t.Error("a certificate is accepted before it begins")
		}
	})
}

// Regression: the metric counted verifications.
func TestEachRequestWithACertificateIsObserved(t *testing.T) {
	authority := issue(t, "ca", nil, 24*time.Hour)
	node := issue(t, "node", authority, time.Hour)
	c, _ := certificatesBy(authority)
	observed := func() (count uint64) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "apiserver_client_certificate_expiration_seconds" {
				count = f.GetMetric()[0].GetHistogram().GetSampleCount()
			}
		}
		return count
	}
	before := observed()
	for range 3 {
		if _, ok, err := c.AuthenticateRequest(certificateRequest(node.cert)); !ok || err != nil {
			t.Fatalf("refused: %v", err)
		}
	}
	if got := observed() - before; got != 3 {
		t.Errorf("%d of 3 requests", got)
	}
}
