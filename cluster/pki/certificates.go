package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"time"
)

const (
	typeCertificate = "CERTIFICATE"
	typeKey         = "EC PRIVATE KEY"
)

// authority signs the certificates of the cluster.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// subject is what a certificate says. With hosts it is one for servers, else one for clients; a
// peer is both.
type subject struct {
	name   string
	groups []string
	hosts  []string
	peer   bool
}

// ensureAuthority returns the authority in the file at path, renewed or made if need be. The file
// at certPath gets its certificate.
func ensureAuthority(name, path, certPath string, now time.Time) (authority, error) {
	a, err := ensureAuthorityPair(name, path, now)
	if err != nil {
		return authority{}, err
	}
	return a, Replace(certPath, encodeCertificate(a.cert.Raw), 0o644)
}

func ensureAuthorityPair(name, path string, now time.Time) (authority, error) {
	data, err := read(path)
	if err != nil {
		return authority{}, err
	}
	cert, key := decodePair(data)
	good := cert != nil && key != nil && cert.IsCA && matches(cert, key)
	if good && current(cert, now) {
		return authority{cert, key}, nil
	}
	if data != nil && key == nil {
		slog.Warn("a certificate authority of the cluster was damaged and is made again; credentials handed out before are void", "file", path)
	}
	if key == nil {
		if key, err = newKey(); err != nil {
			return authority{}, err
		}
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
	}
	if cert, err = sign(template, template, key.Public(), key); err != nil {
		return authority{}, err
	}
	return authority{cert, key}, writePair(path, cert, key)
}

// ensurePair makes sure that the file at path holds a pair for s that serves for another 30 days.
func (a authority) ensurePair(path string, s subject) error {
	data, err := read(path)
	if err != nil {
		return err
	}
	now := time.Now()
	template := s.template(now)
	if cert, key := decodePair(data); cert != nil && key != nil && matches(cert, key) && current(cert, now) &&
		cert.CheckSignatureFrom(a.cert) == nil && sameSubject(cert, template) {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	cert, err := sign(template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writePair(path, cert, key)
}

// ensureKey makes sure that the file at path holds a private key.
func ensureKey(path string) error {
	data, err := read(path)
	if err != nil {
		return err
	}
	if _, key := decodePair(data); key != nil {
		return nil
	}
	if data != nil {
		slog.Warn("the key that signs service account tokens was damaged and is made again; tokens handed out before are void", "file", path)
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	return writePair(path, nil, key)
}

func (s subject) template(now time.Time) *x509.Certificate {
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: s.name, Organization: s.groups}, NotBefore: now.Add(-backdate), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if s.hosts != nil {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if s.peer {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, host := range s.hosts {
		if ip := net.ParseIP(host); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, host)
		}
	}
	return t
}

func sameSubject(a, b *x509.Certificate) bool {
	sorted := func(c *x509.Certificate) []string {
		names := slices.Clone(c.DNSNames)
		for _, ip := range c.IPAddresses {
			names = append(names, ip.String())
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	return a.Subject.CommonName == b.Subject.CommonName && slices.Equal(a.Subject.Organization, b.Subject.Organization) &&
		slices.Equal(sorted(a), sorted(b)) && slices.Equal(a.ExtKeyUsage, b.ExtKeyUsage)
}

func current(cert *x509.Certificate, now time.Time) bool {
	return !now.Before(cert.NotBefore) && now.Add(renewBefore).Before(cert.NotAfter)
}

func matches(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := cert.PublicKey.(*ecdsa.PublicKey)
	return ok && public.Equal(key.Public())
}

func newKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("pki: certificate for %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

func marshalKey(key crypto.Signer) ([]byte, error) {
	return x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der})
}

func writePair(path string, cert *x509.Certificate, key crypto.Signer) error {
	der, err := marshalKey(key)
	if err != nil {
		return err
	}
	var data bytes.Buffer
	if cert != nil {
		data.Write(encodeCertificate(cert.Raw))
	}
	data.Write(pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}))
	return Replace(path, data.Bytes(), 0o600)
}

// decodePair returns the first certificate and key in data, nil for what is missing or damaged.
func decodePair(data []byte) (cert *x509.Certificate, key crypto.Signer) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return cert, key
		}
		data = rest
		switch {
		case block.Type == typeCertificate && cert == nil:
			cert, _ = x509.ParseCertificate(block.Bytes)
		case block.Type == typeKey && key == nil:
			if k, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				key = k
			}
		}
	}
}
