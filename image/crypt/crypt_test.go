package crypt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/aes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	"github.com/go-jose/go-jose/v4"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/smallstep/pkcs7"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// pair is a key in PEM, its public half and a certificate of it.
type pair struct{ private, public, cert []byte }

func newPair(t testing.TB, key crypto.Signer) pair {
	t.Helper()
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	must(t, err)
	return pair{block("PRIVATE KEY", private), block("PUBLIC KEY", public), block("CERTIFICATE", cert)}
}

func rsaPair(t testing.TB) pair {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return newPair(t, key)
}

// encrypt makes a layer as ocicrypt does.
func encrypt(t testing.TB, cc config.CryptoConfig, plain []byte) (ocispec.Descriptor, []byte) {
	t.Helper()
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(plain), Size: int64(len(plain))}
	r, finish, err := ocicrypt.EncryptLayer(cc.EncryptConfig, bytes.NewReader(plain), d)
	must(t, err)
	data, err := io.ReadAll(r)
	must(t, err)
	annotations, err := finish()
	must(t, err)
	return ocispec.Descriptor{
		MediaType: d.MediaType + suffix, Digest: digest.FromBytes(data), Size: int64(len(data)),
		Annotations: annotations,
	}, data
}

func TestDecrypt(t *testing.T) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	for name, p := range map[string]pair{"RSA": rsaPair(t), "ECDSA": newPair(t, ec)} {
		cc, err := config.EncryptWithJwe([][]byte{p.public})
		must(t, err)
		check(t, name, cc, map[string][]byte{"node.pem": p.private, "other.pem": rsaPair(t).private})
	}
	p := rsaPair(t)
	cc, err := config.EncryptWithPkcs7([][]byte{p.cert})
	must(t, err)
	check(t, "PKCS #7", cc, map[string][]byte{"node.pem": p.private, "node.crt": p.cert})
}

// The kinds of files that keys come in, among files that are no keys.
func TestKeyFiles(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	p := newPair(t, key)
	sec1, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	jwk, err := json.Marshal(jose.JSONWebKey{Key: key})
	must(t, err)
	cc, err := config.EncryptWithJwe([][]byte{p.public})
	must(t, err)
	for name, data := range map[string][]byte{
		"PEM": p.private, "SEC 1 in PEM": block("EC PRIVATE KEY", sec1), "SEC 1": sec1, "PKCS #8": pkcs8, "JWK": jwk,
		"PEM with its certificate": append(bytes.Clone(p.cert), p.private...),
	} {
		check(t, name, cc, map[string][]byte{
			"0-readme": []byte("Keys of this node.\n"), "0-empty": nil, "0-broken.pem": []byte("-----BEGIN PRIVATE KEY-----\n"),
			"0-public.json": []byte("{}"), "0-public.pem": p.public, "node": data,
		})
	}
}

// Messages that the libraries panic on, made with nothing but the node's public key.
func TestMessagesThatLibrariesPanicOn(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	p, dir := newPair(t, key), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), append(bytes.Clone(p.private), p.cert...), 0o600))

	// An empty ciphertext, which has no padding to take off.
	content := bytes.Repeat([]byte{7}, 32)
	wrapped, err := rsa.EncryptOAEP(sha1.New(), rand.Reader, &key.PublicKey, content, nil)
	must(t, err)
	b64 := base64.RawURLEncoding.EncodeToString
	header, iv := b64([]byte(`{"alg":"RSA-OAEP","enc":"A128CBC-HS256"}`)), make([]byte, aes.BlockSize)
	tag := hmac.New(sha256.New, content[:16])
	tag.Write(binary.BigEndian.AppendUint64(append([]byte(header), iv...), uint64(len(header)*8)))
	jwe := strings.Join([]string{header, b64(wrapped), b64(iv), "", b64(tag.Sum(nil)[:16])}, ".")

	// Content that is a tag of several bytes, of which the last is missing.
	var m envelope
	m.Type, m.Content.Recipients = pkcs7.OIDEnvelopedData, asn1.RawValue{Tag: asn1.TagSet, IsCompound: true}
	m.Content.Encrypted.Type, m.Content.Encrypted.Algorithm.Algorithm = pkcs7.OIDData, pkcs7.OIDEncryptionAlgorithmAES128GCM
	m.Content.Encrypted.Content = asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true, Bytes: []byte{0x1f, 0x80}}
	message, err := asn1.Marshal(m)
	must(t, err)

	for annotation, data := range map[string][]byte{annotationJWE: []byte(jwe), annotationPKCS7: message} {
		err := (Keys{dir}).Check(t.Context(), withKey(annotation, data))
		if !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "malformed message") {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}

// withKey is a layer with messages that may have its key.
func withKey(annotation string, messages ...[]byte) ocispec.Descriptor {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = encode(string(m))
	}
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayer + suffix, Digest: digest.FromString("x"), Size: 1,
		Annotations: map[string]string{annotation: strings.Join(all, ",")},
	}
}

// Content that is not authenticated is not decrypted, whatever the library can do.
func TestContentOfPKCS7IsAuthenticated(t *testing.T) {
	p, dir := rsaPair(t), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), append(bytes.Clone(p.private), p.cert...), 0o600))
	certBlock, _ := pem.Decode(p.cert)
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	must(t, err)
	defer func(was int) { pkcs7.ContentEncryptionAlgorithm = was }(pkcs7.ContentEncryptionAlgorithm)
	for alg, ok := range map[int]bool{
		pkcs7.EncryptionAlgorithmDESCBC: false, pkcs7.EncryptionAlgorithmAES128CBC: false, pkcs7.EncryptionAlgorithmAES256CBC: false,
		pkcs7.EncryptionAlgorithmAES128GCM: true, pkcs7.EncryptionAlgorithmAES256GCM: true,
	} {
		pkcs7.ContentEncryptionAlgorithm = alg
		message, err := pkcs7.Encrypt([]byte("{}"), []*x509.Certificate{cert})
		must(t, err)
		err = (Keys{dir}).Check(t.Context(), withKey(annotationPKCS7, message))
		if ok != (err == nil) || !ok && !(errors.Is(err, ErrNoKey) && strings.Contains(err.Error(), "instead of AES-GCM")) {
			t.Errorf("algorithm %d: %v", alg, err)
		}
	}
}

// A private key is not used for any number of recipients, and not once the pull has ended.
func TestRecipientsAreLimited(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), newPair(t, key).private, 0o600))
	message := func(others int, last *rsa.PublicKey) []byte {
		to := make([]jose.Recipient, others, others+1)
		for i := range to {
			to[i] = jose.Recipient{Algorithm: jose.RSA_OAEP, Key: &other.PublicKey}
		}
		e, err := jose.NewMultiEncrypter(jose.A128GCM, append(to, jose.Recipient{Algorithm: jose.RSA_OAEP, Key: last}), nil)
		must(t, err)
		m, err := e.Encrypt([]byte("{}"))
		must(t, err)
		return []byte(m.FullSerialize())
	}
	all, tooMany := message(maxRecipients-1, &key.PublicKey), message(maxRecipients, &key.PublicKey)
	for name, c := range map[string]struct {
		messages [][]byte
		ok       bool
	}{
		"as many as are tried": {[][]byte{all}, true}, "one more": {[][]byte{tooMany}, false},
		"one more, in two messages":                    {[][]byte{message(1, &other.PublicKey), all}, false},
		"white space that only go-jose takes for that": {[][]byte{bytes.Replace(tooMany, []byte("{"), []byte("{\u00a0"), 1)}, false},
		"another list, which go-jose ignores": {
			[][]byte{bytes.Replace(tooMany, []byte("{"), []byte(`{"Recipients":[],`), 1)}, false,
		},
		"elements deeper than the largest stack": {
			[][]byte{[]byte(`{"unprotected":{"a":` + strings.Repeat("[", 8<<20) + strings.Repeat("]", 8<<20) + `}}`)}, false,
		},
	} {
		err := (Keys{dir}).Check(t.Context(), withKey(annotationJWE, c.messages...))
		if c.ok != (err == nil) || err != nil && !errors.Is(err, ErrNoKey) {
			t.Errorf("%s: %.300v", name, err)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := (Keys{dir}).Check(ended, withKey(annotationJWE, all)); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNoKey) {
		t.Errorf("of a pull that has ended: %v", err)
	}
}

// Whatever a manifest says, it is refused or read.
func FuzzAnnotations(f *testing.F) {
	p, dir := rsaPair(f), f.TempDir()
	must(f, os.WriteFile(filepath.Join(dir, "node.pem"), append(bytes.Clone(p.private), p.cert...), 0o600))
	cc, err := config.EncryptWithJwe([][]byte{p.public})
	must(f, err)
	d, data := encrypt(f, cc, []byte("layer"))
	own := d.Annotations[annotationJWE]
	f.Add(own, "MIA=", d.Annotations[annotationOptions])
	f.Add("e30=", encode("\x1f\x80"), encode(`{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"AAAA","cipheroptions":{"nonce":""}}`))
	f.Fuzz(func(t *testing.T, jwe, p7, public string) {
		for _, a := range []map[string]string{
			{annotationJWE: jwe, annotationOptions: public},
			{annotationPKCS7: p7, annotationOptions: public},
			{annotationJWE: own, annotationOptions: public},
		} {
			d.Annotations = a
			r, err := (Keys{dir}).Open(t.Context(), d, bytes.NewReader(data))
			if err != nil {
				if !errors.Is(err, ErrNoKey) {
					t.Errorf("%v: %v", a, err)
				}
				continue
			}
			_, _ = io.Copy(io.Discard, r) // right or wrong, the diff id tells
		}
	})
}

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func check(t *testing.T, name string, cc config.CryptoConfig, files map[string][]byte) {
	t.Helper()
	plain := []byte(strings.Repeat("layer", 1000))
	d, data := encrypt(t, cc, plain)
	k := Keys{t.TempDir()}
	must(t, os.Mkdir(filepath.Join(k.Dir, "..data"), 0o700))
	if err := k.Check(t.Context(), d); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), k.Dir) {
		t.Errorf("%s, without a key: %v", name, err)
	}
	for file, data := range files {
		must(t, os.WriteFile(filepath.Join(k.Dir, file), data, 0o600))
	}
	if err := k.Check(t.Context(), d); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	r, err := k.Open(t.Context(), d, bytes.NewReader(data))
	must(t, err)
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%s: %d bytes, %v", name, len(got), err)
	}
	data[len(data)/2]++
	r, err = k.Open(t.Context(), d, bytes.NewReader(data))
	must(t, err)
	if _, err := io.ReadAll(r); err == nil {
		t.Errorf("%s: what is not what was encrypted was read without an error", name)
	}
}

func TestPlainLayersPass(t *testing.T) {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}
	must(t, Keys{}.Check(t.Context(), d))
	in := strings.NewReader("x")
	if r, err := (Keys{}).Open(t.Context(), d, in); err != nil || r != io.Reader(in) {
		t.Errorf("%v, %v", r, err)
	}
}

// The keys are read once for all layers of an image, and each layer is looked at.
func TestCheckOfAnImage(t *testing.T) {
	own, other, dir := rsaPair(t), rsaPair(t), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), own.private, 0o600))
	layer := func(p pair) ocispec.Descriptor {
		cc, err := config.EncryptWithJwe([][]byte{p.public})
		must(t, err)
		d, _ := encrypt(t, cc, []byte("layer"))
		return d
	}
	plain := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}
	good, bad := layer(own), layer(other)
	must(t, Keys{dir}.Check(t.Context(), plain, good, good, plain))
	err := (Keys{dir}).Check(t.Context(), plain, good, bad)
	if !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), bad.Digest.String()) {
		t.Errorf("with a layer for others: %v", err)
	}
	// Unread without need: a file that is too large to be a key is an error.
	must(t, os.Truncate(filepath.Join(dir, "node.pem"), maxKeyFile+1))
	must(t, Keys{dir}.Check(t.Context(), plain, plain))
	if err := (Keys{dir}).Check(t.Context(), plain, good); err == nil || errors.Is(err, ErrNoKey) {
		t.Errorf("with a file that is too large: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	p := rsaPair(t)
	cc, err := config.EncryptWithJwe([][]byte{p.public})
	must(t, err)
	d, data := encrypt(t, cc, []byte("layer"))
	if err := (Keys{}).Check(t.Context(), d); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "image.decryption_keys") {
		t.Error(err)
	}
	if _, err := (Keys{"/does/not/exist"}).Open(t.Context(), d, bytes.NewReader(data)); !errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), p.private, 0o600))
	for name, annotations := range map[string]map[string]string{
		"no keys":    nil,
		"not base64": {"org.opencontainers.image.enc.keys.jwe": "?"},
		"not JWE":    {"org.opencontainers.image.enc.keys.jwe": "anVuaw=="},
	} {
		bad := d
		bad.Annotations = annotations
		if err := (Keys{dir}).Check(t.Context(), bad); !errors.Is(err, ErrNoKey) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "node.crt"), p.cert, 0o600))
	for name, message := range map[string][]byte{
		"ends in a tag": {0x1f, 0x80}, "ends before a length": {0x1f, 0x01}, "ends in a length": {0x30, 0x84},
		"nested": bytes.Repeat([]byte{0x30, 0x80}, maxPKCS7/2), "large": bytes.Repeat([]byte{0x30, 0x80}, 1<<20),
	} {
		bad := d
		bad.Annotations = map[string]string{"org.opencontainers.image.enc.keys.pkcs7": base64.StdEncoding.EncodeToString(message)}
		if err := (Keys{dir}).Check(t.Context(), bad); !errors.Is(err, ErrNoKey) {
			t.Errorf("PKCS #7 that is %s: %v", name, err)
		}
	}
	many := d
	many.Annotations = map[string]string{"org.opencontainers.image.enc.keys.jwe": strings.Repeat("anVuaw==,", maxWrapped) +
		d.Annotations["org.opencontainers.image.enc.keys.jwe"]}
	if err := (Keys{dir}).Check(t.Context(), many); !errors.Is(err, ErrNoKey) {
		t.Errorf("a key after %d others: %v", maxWrapped, err)
	}
	for name, public := range map[string]string{
		"not base64": "?", "not JSON": "anVuaw==", "absent": "",
		"without a nonce":   encode(`{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"AAAA"}`),
		"a nonce too short": encode(`{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"AAAA","cipheroptions":{"nonce":"AAAA"}}`),
		"another cipher":    encode(`{"cipher":"ROT13","hmac":"AAAA","cipheroptions":{"nonce":"AAAAAAAAAAAAAAAAAAAAAA=="}}`),
	} {
		bad := d
		bad.Annotations = maps.Clone(d.Annotations)
		bad.Annotations[annotationOptions] = public
		// The layer's own nonce is one of the encrypted options.
		if r, err := (Keys{dir}).Open(t.Context(), bad, bytes.NewReader(data)); err == nil {
			if _, err := io.ReadAll(r); err == nil {
				t.Errorf("options %s: read without an error", name)
			}
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "large.pem"), make([]byte, maxKeyFile+1), 0o600))
	if err := (Keys{dir}).Check(t.Context(), d); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}
