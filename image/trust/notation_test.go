package trust

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature/cose"
	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-core-go/testhelper"
	"github.com/notaryproject/notation-go"
	notaryregistry "github.com/notaryproject/notation-go/registry"
	"github.com/notaryproject/notation-go/signer"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// notarize attaches a signature by notation's own library.
func notarize(t testing.TB, r *repo, image ocispec.Descriptor, mediaType string, expires time.Duration) {
	t.Helper()
	leaf, root := testhelper.GetECLeafCertificate(), testhelper.GetECRootCertificate()
	s, err := signer.NewGenericSigner(leaf.PrivateKey, []*x509.Certificate{leaf.Cert, root.Cert})
	must(t, err)
	envelope, _, err := s.Sign(t.Context(), image, notation.SignerSignOptions{SignatureMediaType: mediaType, ExpiryDuration: expires})
	must(t, err)
	attach(t, r, image.Digest, mediaType, envelope)
}

func attach(t testing.TB, r *repo, image digest.Digest, mediaType string, envelope []byte) {
	t.Helper()
	l := r.put(envelope)
	l.MediaType = mediaType
	m := r.putJSON(t, ocispec.Manifest{
		Config: ocispec.Descriptor{MediaType: notaryregistry.ArtifactTypeNotation, Digest: digest.FromString("{}"), Size: 2},
		Layers: []ocispec.Descriptor{l},
	})
	r.tags[strings.Replace(image.String(), ":", "-", 1)] = r.putJSON(t, ocispec.Index{Manifests: []ocispec.Descriptor{m}}).Digest
}

func writeCert(t testing.TB, dir, name string, c *x509.Certificate) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600))
}

func TestNotation(t *testing.T) {
	dir := t.TempDir()
	writeCert(t, dir, "ca.crt", testhelper.GetECRootCertificate().Cert)
	writeCert(t, dir, "other.crt", testhelper.GetRSARootCertificate().Cert)
	subject := testhelper.GetECLeafCertificate().Cert.Subject.String()
	for name, c := range map[string]struct {
		policy string
		attach func(r *repo, image ocispec.Descriptor)
		want   string
	}{
		"JWS": {"certificates = ['ca.crt']", func(r *repo, i ocispec.Descriptor) {
			notarize(t, r, i, jws.MediaTypeEnvelope, time.Hour)
		}, ""},
		"COSE": {"certificates = ['other.crt', 'ca.crt']", func(r *repo, i ocispec.Descriptor) {
			notarize(t, r, i, cose.MediaTypeEnvelope, 0)
		}, ""},
		"the signer": {"certificates = ['ca.crt']\nidentities = ['x509.subject: " + subject + "']", func(r *repo, i ocispec.Descriptor) {
			notarize(t, r, i, jws.MediaTypeEnvelope, 0)
		}, ""},
		"other signer": {"certificates = ['ca.crt']\nidentities = ['x509.subject: C=US, ST=WA, O=else']", func(r *repo, i ocispec.Descriptor) {
			notarize(t, r, i, jws.MediaTypeEnvelope, 0)
		}, "trusted identities"},
		"other CA": {"certificates = ['other.crt']", func(r *repo, i ocispec.Descriptor) {
			notarize(t, r, i, jws.MediaTypeEnvelope, 0)
		}, "does not count"},
		"other image": {"certificates = ['ca.crt']", func(r *repo, i ocispec.Descriptor) {
			other := i
			other.Digest = digest.FromString("other")
			notarize(t, r, other, jws.MediaTypeEnvelope, 0)
			r.tags[strings.Replace(i.Digest.String(), ":", "-", 1)] = r.tags[strings.Replace(other.Digest.String(), ":", "-", 1)]
		}, "mismatch"},
		"none": {"certificates = ['ca.crt']", func(*repo, ocispec.Descriptor) {}, "it has no signature by notation"},
		"junk": {"certificates = ['ca.crt']", func(r *repo, i ocispec.Descriptor) {
			attach(t, r, i.Digest, jws.MediaTypeEnvelope, []byte("junk"))
		}, "does not count"},
		"unknown kind": {"certificates = ['ca.crt']", func(r *repo, i ocispec.Descriptor) {
			attach(t, r, i.Digest, "text/plain", []byte("junk"))
		}, "does not count"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepo("r.example/app")
			image := r.putJSON(t, "image")
			c.attach(r, image)
			err := policy(t, dir, "default = 'reject'\n[scope.'r.example']\npolicy = 'notation'\n%s", c.policy).Check(t.Context(), r, image)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestNotationIdentitiesAreChecked(t *testing.T) {
	dir := t.TempDir()
	writeCert(t, dir, "ca.crt", testhelper.GetECRootCertificate().Cert)
	_, err := parsePolicy(
		[]byte("default = 'accept'\n[scope.'r.example']\npolicy = 'notation'\ncertificates = ['ca.crt']\nidentities = ['me']"), dir,
	)
	if err == nil || !strings.Contains(err.Error(), "identities: ") {
		t.Error(err)
	}
}
