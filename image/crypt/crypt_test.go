package crypt

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
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

func check(t *testing.T, name string, cc config.CryptoConfig, files map[string][]byte) {
	t.Helper()
	plain := []byte(strings.Repeat("layer", 1000))
	d, data := encrypt(t, cc, plain)
	k := Keys{t.TempDir()}
	must(t, os.Mkdir(filepath.Join(k.Dir, "..data"), 0o700))
	if err := k.Check(d); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), k.Dir) {
		t.Errorf("%s, without a key: %v", name, err)
	}
	for file, data := range files {
		must(t, os.WriteFile(filepath.Join(k.Dir, file), data, 0o600))
	}
	if err := k.Check(d); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	r, err := k.Open(d, bytes.NewReader(data))
	must(t, err)
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("%s: %d bytes, %v", name, len(got), err)
	}
	data[len(data)/2]++
	r, err = k.Open(d, bytes.NewReader(data))
	must(t, err)
	if _, err := io.ReadAll(r); err == nil {
		t.Errorf("%s: what is not what was encrypted was read without an error", name)
	}
}

func TestPlainLayersPass(t *testing.T) {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip}
	must(t, Keys{}.Check(d))
	in := strings.NewReader("x")
	if r, err := (Keys{}).Open(d, in); err != nil || r != io.Reader(in) {
		t.Errorf("%v, %v", r, err)
	}
}

func TestRefusals(t *testing.T) {
	p := rsaPair(t)
	cc, err := config.EncryptWithJwe([][]byte{p.public})
	must(t, err)
	d, data := encrypt(t, cc, []byte("layer"))
	if err := (Keys{}).Check(d); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "image.decryption_keys") {
		t.Error(err)
	}
	if _, err := (Keys{"/does/not/exist"}).Open(d, bytes.NewReader(data)); !errors.Is(err, ErrNoKey) {
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
		if err := (Keys{dir}).Check(bad); !errors.Is(err, ErrNoKey) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "large.pem"), make([]byte, maxKeyFile+1), 0o600))
	if err := (Keys{dir}).Check(d); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}
