package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"iter"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
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
	// made is when the key was made, if that is not when the certificate was.
	made time.Time
	// former is the authority before this one while it is trusted, nil if there is none. replaced is
	// when this one replaced it.
	former   *x509.Certificate
	replaced time.Time
	// cross are certificates by which each authority before certifies the key of the next, the newest
	// first. They are shown with this one's certificates, so that clients that know only an authority
	// before trust them, too. They are also kept when that is not trusted any more, for clients that
	// read the authority once, when they start.
	cross []*x509.Certificate
}

// mostCross bounds how many rotations such clients outlive.
const mostCross = 4

// subject is what a certificate says. With hosts it is one for servers, else one for clients; a
// peer is both.
type subject struct {
	name   string
	groups []string
	hosts  []string
	peer   bool
}

// ensureAuthority returns the authority in the file at path, renewed, replaced or made if need be.
// The file at certPath gets the certificates to trust, its own first.
func ensureAuthority(name, path, certPath string, now time.Time, r Rotation, log *slog.Logger) (authority, error) {
	a, err := ensureAuthorityPair(name, path, now, r, log)
	if err != nil {
		return authority{}, err
	}
	return a, Replace(certPath, a.trusted(), 0o644)
}

func ensureAuthorityPair(name, path string, now time.Time, r Rotation, log *slog.Logger) (authority, error) {
	// Of two processes that find none, the second has to take over what the first makes.
	unlock, err := lock(filepath.Dir(path))
	if err != nil {
		return authority{}, err
	}
	defer unlock()
	return ensureAuthorityLocked(name, path, now, r, log)
}

func ensureAuthorityLocked(name, path string, now time.Time, r Rotation, log *slog.Logger) (authority, error) {
	data, err := read(path)
	if err != nil {
		return authority{}, err
	}
	a := decodeAuthority(data)
	good := a.whole()
	old := good && a.keyMade().Before(r.Authority)
	over := a.former != nil && a.replaced.Before(r.DropFormer)
	if good && current(a.cert, now) && !old && !over {
		return a, nil
	}
	if data != nil && a.key == nil {
		log.Warn("a certificate authority of the cluster was damaged and is made again; credentials handed out before are void", "file", path)
	}
	switch {
	case old:
		if a, err = a.successor(name, now); err != nil {
			return authority{}, err
		}
		log.Info("a certificate authority of the cluster is replaced; the former one is trusted, too", "file", path)
		return a, a.write(path)
	case over:
		log.Info("a former certificate authority of the cluster is not trusted any more", "file", path)
		a.former = nil
		if current(a.cert, now) {
			return a, a.write(path)
		}
	}
	if a.key == nil {
		a.made = time.Time{}
		if a.key, err = newKey(); err != nil {
			return authority{}, err
		}
	}
	if good { // certificates name it
		name = a.cert.Subject.CommonName
		a.made = a.keyMade() // the clock may be wrong now
	}
	if a.cert, err = selfSigned(name, a.key, now); err != nil {
		return authority{}, err
	}
	return a, a.write(path)
}

// whole says whether a can sign.
func (a authority) whole() bool {
	return a.cert != nil && a.key != nil && a.cert.IsCA && matches(a.cert, a.key)
}

// authorityTemplate is a certificate of an authority, of what it says itself.
func authorityTemplate(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
	}
}

func selfSigned(name string, key crypto.Signer, now time.Time) (*x509.Certificate, error) {
	template := authorityTemplate(name, now)
	return sign(template, template, key.Public(), key)
}

// successor returns an authority with a key of its own that replaces a. Its name differs, because
// some programs look for an issuer by its name alone.
func (a authority) successor(name string, now time.Time) (authority, error) {
	key, err := newKey()
	if err != nil {
		return authority{}, err
	}
	name += "-" + now.UTC().Format("20060102-150405")
	cert, err := selfSigned(name, key, now)
	if err != nil {
		return authority{}, err
	}
	cross := authorityTemplate(name, now)
	cross.NotAfter = a.cert.NotAfter
	certified, err := sign(cross, a.cert, key.Public(), a.key)
	if err != nil {
		return authority{}, err
	}
	return authority{
		cert: cert, key: key, former: a.cert, replaced: now.Truncate(time.Second),
		cross: append([]*x509.Certificate{certified}, a.cross[:min(len(a.cross), mostCross-1)]...),
	}, nil
}

// trusted are the certificates that clients are to trust, PEM.
func (a authority) trusted() []byte {
	all := encodeCertificate(a.cert.Raw)
	if a.former != nil {
		all = append(all, encodeCertificate(a.former.Raw)...)
	}
	return all
}

// chain is what is shown with certificates of a, PEM.
func (a authority) chain() (all []byte) {
	for _, cross := range a.cross {
		all = append(all, encodeCertificate(cross.Raw)...)
	}
	return all
}

// Headers in a PEM file: when a former authority was replaced, until when a former key verifies,
// and when a key was made (RFC 3339).
const (
	headerReplaced = "Replaced"
	headerVerifies = "Verifies-Until"
	headerMade     = "Made"
)

// write replaces the authority's file, in one step. A former one's certificate has a header.
func (a authority) write(path string) error {
	more := a.chain()
	if a.former != nil {
		more = append(more, pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: a.former.Raw, Headers: map[string]string{
			headerReplaced: a.replaced.UTC().Format(time.RFC3339),
		}})...)
	}
	return writePairOf(path, a.cert, a.key, more, a.made)
}

// keyMade is when the key was made. Its certificate may have been made again later.
func (a authority) keyMade() time.Time {
	if a.made.IsZero() {
		return madeAt(a.cert)
	}
	return a.made
}

func decodeAuthority(data []byte) (a authority) {
	a.cert, a.key = decodePair(data)
	for block := range blocks(data) {
		if block.Type == typeKey && a.made.IsZero() {
			a.made, _ = time.Parse(time.RFC3339, block.Headers[headerMade])
		}
		if block.Type != typeCertificate {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if replaced, err := time.Parse(time.RFC3339, block.Headers[headerReplaced]); err == nil {
			a.former, a.replaced = cert, replaced
		} else if a.cert != nil && !cert.Equal(a.cert) {
			a.cross = append(a.cross, cert)
		}
	}
	return a
}

// blocks are those of a PEM file.
func blocks(data []byte) iter.Seq[*pem.Block] {
	return func(yield func(*pem.Block) bool) {
		for {
			block, rest := pem.Decode(data)
			if block == nil || !yield(block) {
				return
			}
			data = rest
		}
	}
}

// ensurePair makes sure that the file at path holds a pair for s that serves for another 30 days,
// was not made before again, and has the chain of the authority.
func (a authority) ensurePair(path string, s subject, now, again time.Time) error {
	data, err := read(path)
	if err != nil {
		return err
	}
	template := s.template(now)
	cert, key := decodePair(data)
	if cert != nil && key != nil && matches(cert, key) && current(cert, now) && cert.CheckSignatureFrom(a.cert) == nil &&
		sameSubject(cert, template) && !madeAt(cert).Before(again) {
		return writePair(path, cert, key, a.chain())
	}
	if key, err = newKey(); err != nil {
		return err
	}
	if cert, err = sign(template, a.cert, key.Public(), a.key); err != nil {
		return err
	}
	return writePair(path, cert, key, a.chain())
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

// madeAt is when a certificate was made.
func madeAt(cert *x509.Certificate) time.Time { return cert.NotBefore.Add(backdate) }

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

// Encode returns a certificate as PEM.
func Encode(cert *x509.Certificate) []byte { return encodeCertificate(cert.Raw) }

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der})
}

// writePair writes a certificate with its chain, and the key.
func writePair(path string, cert *x509.Certificate, key crypto.Signer, chain []byte) error {
	return writePairOf(path, cert, key, chain, time.Time{})
}

// writePairOf is writePair of a key that was made at another time than the certificate, if made is
// not zero.
func writePairOf(path string, cert *x509.Certificate, key crypto.Signer, chain []byte, made time.Time) error {
	der, err := marshalKey(key)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: typeKey, Bytes: der}
	if !made.IsZero() {
		block.Headers = map[string]string{headerMade: made.UTC().Format(time.RFC3339)}
	}
	data := append(encodeCertificate(cert.Raw), chain...)
	return Replace(path, append(data, pem.EncodeToMemory(block)...), 0o600)
}

// decodePair returns the first certificate and key in data, nil for what is missing or damaged.
func decodePair(data []byte) (cert *x509.Certificate, key crypto.Signer) {
	for block := range blocks(data) {
		switch {
		case block.Type == typeCertificate && cert == nil:
			cert, _ = x509.ParseCertificate(block.Bytes)
		case block.Type == typeKey && key == nil:
			if k, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				key = k
			}
		}
	}
	return cert, key
}
