package image

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containers/ocicrypt"
	"github.com/containers/ocicrypt/config"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/crypt"
	"github.com/coracle-project/coracle/image/pack"
)

// encrypted pushes an image whose layer is for the owner of the returned key, in PEM.
func encrypted(t *testing.T, r *fakeRegistry, name string) (p pushed, private []byte) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must(t, err)
	cc, err := config.EncryptWithJwe([][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})})
	must(t, err)
	plain := gzipLayer(tarOf("secret", "for the node only"))
	sealed, finish, err := ocicrypt.EncryptLayer(cc.EncryptConfig, bytes.NewReader(plain.data), ocispec.Descriptor{MediaType: plain.mediaType})
	must(t, err)
	data, err := io.ReadAll(sealed)
	must(t, err)
	annotations, err := finish()
	must(t, err)
	p = r.image(name, []testLayer{{tar: plain.tar, data: data, mediaType: plain.mediaType + "+encrypted"}},
		func(m *ocispec.Manifest, _ *ocispec.Image) {
			m.Layers[0].Annotations = annotations
		})
	return p, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func TestEncryptedImage(t *testing.T) {
	r := newFake(t)
	p, key := encrypted(t, r, "app:1")
	dir := t.TempDir()
	s := openStore(t, func(c *Config) { c.Keys = crypt.Keys{Dir: dir} })
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	if !errors.Is(err, ErrNoKey) || s.left(t) != nothingLeft || r.asked(string(p.layers[0])) != 0 {
		t.Errorf("without the key: %v, left %s, layer asked for %d times", err, s.left(t), r.asked(string(p.layers[0])))
	}
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), key, 0o600))
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	if got := s.content(t, p.diffIDs[0], "secret"); got != "for the node only" {
		t.Errorf("%q", got)
	}
	// That it is unpacked here is no permission once the key is gone.
	must(t, os.Remove(filepath.Join(dir, "node.pem")))
	if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); !errors.Is(err, ErrNoKey) {
		t.Errorf("after the key has gone: %v", err)
	}
}

// What was encrypted does not leave the node as plain text: as it came, or not at all.
func TestEncryptedImageIsNotPackedAnew(t *testing.T) {
	r := newFake(t)
	p, key := encrypted(t, r, "app:1")
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "node.pem"), key, 0o600))
	for _, keep := range []bool{false, true} {
		s := openStore(t, func(c *Config) { c.Keys, c.KeepBlobs = crypt.Keys{Dir: dir}, keep })
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		must(t, err)
		for _, as := range []pack.Form{pack.AsBlobs, pack.AsTars} {
			k, err := s.packs.Packer(as, nil)
			must(t, err)
			defer k.Close()
			parcel, err := k.Pack(t.Context(), r.ref("app:1"))
			switch {
			case keep && as == pack.AsBlobs:
				must(t, err)
				if parcel.Manifest.Digest != p.manifest {
					t.Errorf("it leaves as %s", parcel.Manifest.Digest)
				}
				must(t, parcel.Release())
			case err == nil || !strings.Contains(err.Error(), "leave as plain text"):
				t.Errorf("blobs kept: %v, as %d: %v", keep, as, err)
			}
		}
	}
}
