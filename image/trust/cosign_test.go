package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

func TestCosignsOwnSignatures(t *testing.T) {
	for name, c := range map[string]struct {
		tag, drop, extra, want string
	}{
		"both kinds":      {"1", "", "", ""},
		"bundle only":     {"1", ".sig", "any_repository = true", ""},
		"bundle, unnamed": {"1", ".sig", "", "it names no repository"},
		"tag only":        {"1", "bundle", "", ""},
		"copied, bundle":  {"1", ".sig", "signed_as = 'r.example/app'", "it names no repository"},
		"copied, any":     {"1", "bundle", "any_repository = true", ""},
		"copied from elsewhere": {
			"1", "bundle", "signed_as = 'r.example/app'",
			"it is for \"127.0.0.1:5977/team/app\": if the image was copied from there, say so with signed_as",
		},
		"neither":              {"1", "both", "", "it has no signature by cosign"},
		"an attestation by it": {"2", "", "", "its signature by cosign does not count: it states "},
	} {
		t.Run(name, func(t *testing.T) {
			r := cosigned(t)
			d := r.image(t, c.tag)
			bundles := strings.Replace(d.Digest.String(), ":", "-", 1)
			if c.drop == ".sig" || c.drop == "both" {
				delete(r.tags, bundles+".sig")
			}
			if c.drop == "bundle" || c.drop == "both" {
				delete(r.tags, bundles)
			}
			p := policy(t, "testdata/cosign", "default = 'reject'\n[scope.'127.0.0.1:5977']\npolicy = 'cosign'\nkeys = ['cosign.pub']\n%s", c.extra)
			err := p.Check(t.Context(), r, d)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// keyHolder is a key whose public half is in a policy.
type keyHolder struct {
	signature.Signer
	dir string
}

func newKeyHolder(t testing.TB, key crypto.Signer) keyHolder {
	t.Helper()
	s, err := signature.LoadSigner(key, crypto.SHA256)
	must(t, err)
	pem, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "key.pub"), pem, 0o600))
	return keyHolder{s, dir}
}

func ecdsaKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func (s keyHolder) sign(t testing.TB, data []byte) []byte {
	t.Helper()
	sig, err := s.SignMessage(bytes.NewReader(data))
	must(t, err)
	return sig
}

func (s keyHolder) policy(t testing.TB) *Policy {
	return policy(t, s.dir, "default = 'reject'\n[scope.'r.example']\npolicy = 'cosign'\nkeys = ['key.pub']")
}

// tagged attaches signatures under the tag of an image.
func (s keyHolder) tagged(t testing.TB, r *repo, image digest.Digest, change func(*payload.SimpleContainerImage, *ocispec.Descriptor)) {
	t.Helper()
	said := payload.SimpleContainerImage{Critical: payload.Critical{
		Type:     payload.CosignSignatureType,
		Identity: payload.Identity{DockerReference: r.name},
		Image:    payload.Image{DockerManifestDigest: image.String()},
	}}
	var l ocispec.Descriptor
	if change != nil {
		change(&said, &l)
	}
	data, err := json.Marshal(said)
	must(t, err)
	was := l
	l = r.put(data)
	l.MediaType = simpleSigningType
	l.Annotations = map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(s.sign(t, data))}
	if was.Annotations != nil {
		l.Annotations = was.Annotations
	}
	if was.Size != 0 {
		l.Size = was.Size
	}
	if was.Digest != "" {
		l.Digest = was.Digest
	}
	r.tags[strings.Replace(image.String(), ":", "-", 1)+".sig"] = r.putJSON(t, ocispec.Manifest{Layers: []ocispec.Descriptor{l}}).Digest
}

// bundled attaches a bundle with a statement. more are other signatures in it.
func (s keyHolder) bundled(t testing.TB, r *repo, image digest.Digest, said string, more ...[]byte) {
	t.Helper()
	var signatures []map[string]any
	for _, sig := range append(more, s.sign(t, dsse.PAE(statementType, []byte(said)))) {
		signatures = append(signatures, map[string]any{"sig": sig})
	}
	b, err := json.Marshal(map[string]any{"dsseEnvelope": map[string]any{
		"payload": []byte(said), "payloadType": statementType, "signatures": signatures,
	}})
	must(t, err)
	l := r.put(b)
	l.MediaType = bundleType
	m := r.putJSON(t, ocispec.Manifest{ArtifactType: bundleType, Layers: []ocispec.Descriptor{l}})
	r.tags[strings.Replace(image.String(), ":", "-", 1)] = r.putJSON(t, ocispec.Index{Manifests: []ocispec.Descriptor{m}}).Digest
}

func TestKindsOfKey(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	must(t, err)
	for name, key := range map[string]crypto.Signer{"ECDSA P-256": ecdsaKey(t), "ECDSA P-384": p384, "Ed25519": ed, "RSA": rsaKey} {
		s, r := newKeyHolder(t, key), newRepo("r.example/team/app")
		image := r.putJSON(t, name)
		s.tagged(t, r, image.Digest, nil)
		if err := s.policy(t).Check(t.Context(), r, image); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.bundled(t, r, image.Digest,
			`{"predicateType":"`+imageSignature+`","subject":[{"name":"`+r.name+`","digest":{"sha256":"`+image.Digest.Encoded()+`"}}]}`)
		delete(r.tags, strings.Replace(image.Digest.String(), ":", "-", 1)+".sig")
		if err := s.policy(t).Check(t.Context(), r, image); err != nil {
			t.Errorf("%s, bundle: %v", name, err)
		}
	}
}

// The manifest for this machine may be what is signed, and not the index that names it.
func TestManifestOfAnIndex(t *testing.T) {
	s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
	index, manifest := r.putJSON(t, "index"), r.putJSON(t, "manifest")
	s.tagged(t, r, manifest.Digest, nil)
	must(t, s.policy(t).Check(t.Context(), r, index, manifest))
	if err := s.policy(t).Check(t.Context(), r, index, index); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), index.Digest.String()) {
		t.Error(err)
	}
}

func TestSignaturesThatDoNotCount(t *testing.T) {
	other := digest.FromString("other")
	for name, c := range map[string]struct {
		change func(*payload.SimpleContainerImage, *ocispec.Descriptor)
		want   string
	}{
		"of another image": {func(p *payload.SimpleContainerImage, _ *ocispec.Descriptor) {
			p.Critical.Image.DockerManifestDigest = other.String()
		}, "it is of " + other.String()},
		"of another repository": {func(p *payload.SimpleContainerImage, _ *ocispec.Descriptor) {
			p.Critical.Identity.DockerReference = "r.example/other"
		}, `it is for "r.example/other"`},
		"of no repository": {func(p *payload.SimpleContainerImage, _ *ocispec.Descriptor) {
			p.Critical.Identity.DockerReference = ""
		}, "it names no repository"},
		"of something else": {func(p *payload.SimpleContainerImage, _ *ocispec.Descriptor) {
			p.Critical.Type = "cosign blob"
		}, `it signs a "cosign blob"`},
		"not base64": {func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) {
			l.Annotations = map[string]string{signatureAnnotation: "?"}
		}, "it is not base64"},
		"none": {func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) { l.Annotations = map[string]string{} }, "it is not base64"},
		"junk": {func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) {
			l.Annotations = map[string]string{signatureAnnotation: "anVuaw=="}
		}, "not by any of the keys"},
		"large":           {func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) { l.Size = 1 << 30 }, "more than the"},
		"payload missing": {func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) { l.Digest = other }, "image not found"},
		"payload of other digest": {
			func(_ *payload.SimpleContainerImage, l *ocispec.Descriptor) { l.Digest = "md5:00" },
			"is not a SHA-256 digest",
		},
	} {
		s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
		image := r.putJSON(t, "image")
		s.tagged(t, r, image.Digest, c.change)
		if err := s.policy(t).Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAnotherKey(t *testing.T) {
	ours, theirs, r := newKeyHolder(t, ecdsaKey(t)), newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
	image := r.putJSON(t, "image")
	theirs.tagged(t, r, image.Digest, nil)
	theirs.bundled(t, r, image.Digest, `{"predicateType":"`+imageSignature+`","subject":[{"digest":{"sha256":"`+image.Digest.Encoded()+`"}}]}`)
	if err := ours.policy(t).Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), "none of its 2 signatures by cosign counts: it is not by any of the keys") {
		t.Error(err)
	}
}

func TestBundlesThatDoNotCount(t *testing.T) {
	for said, want := range map[string]string{
		`{"predicateType":"` + imageSignature + `","subject":[{"digest":{"sha256":"00"}}]}`: "it is of another image",
		`{"predicateType":"` + imageSignature + `","subject":[]}`:                           "it is of another image",
		`{"predicateType":"https://slsa.dev/provenance/v1"}`:                                `it states "https://slsa.dev/provenance/v1"`,
		`[]`: "its statement is no JSON",
	} {
		s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
		image := r.putJSON(t, "image")
		s.bundled(t, r, image.Digest, said)
		if err := s.policy(t).Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", said, err, want)
		}
	}
}

// A bundle counts for the repository that it names.
func TestBundleOfAnotherRepository(t *testing.T) {
	s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
	image := r.putJSON(t, "image")
	s.bundled(t, r, image.Digest,
		`{"predicateType":"`+imageSignature+`","subject":[{"name":"r.example/other","digest":{"sha256":"`+image.Digest.Encoded()+`"}}]}`)
	if err := s.policy(t).Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), `it is for "r.example/other"`) {
		t.Error(err)
	}
}

// A bundle has one signature. With more, each would cost as much as the payload is long.
func TestBundleOfManySignatures(t *testing.T) {
	s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
	image := r.putJSON(t, "image")
	said := `{"predicateType":"` + imageSignature + `","subject":[{"name":"r.example/app","digest":{"sha256":"` + image.Digest.Encoded() + `"}}]}`
	s.bundled(t, r, image.Digest, said, []byte("junk"))
	if err := s.policy(t).Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), "its bundle has 2 signatures, not one") {
		t.Error(err)
	}
}

// A registry that lists no end of signatures is not followed to it.
func TestManySignatures(t *testing.T) {
	s, r := newKeyHolder(t, ecdsaKey(t)), newRepo("r.example/app")
	image := r.putJSON(t, "image")
	var index ocispec.Index
	var sigs ocispec.Manifest
	for i := range 10 * maxSignatures {
		index.Manifests = append(index.Manifests, r.putJSON(t, i))
		l := r.putJSON(t, i)
		l.MediaType, l.Annotations = simpleSigningType, map[string]string{signatureAnnotation: "anVuaw=="}
		sigs.Layers = append(sigs.Layers, l)
	}
	tag := strings.Replace(image.Digest.String(), ":", "-", 1)
	r.tags[tag], r.tags[tag+".sig"] = r.putJSON(t, index).Digest, r.putJSON(t, sigs).Digest
	err := s.policy(t).Check(t.Context(), r, image)
	if !errors.Is(err, ErrUntrusted) || r.asked > 2*maxSignatures+4 {
		t.Errorf("%v after %d requests", err, r.asked)
	}
}

func FuzzBundle(f *testing.F) {
	s := newKeyHolder(f, ecdsaKey(f))
	p := s.policy(f)
	f.Add([]byte(`{"dsseEnvelope":{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":"AA=="}]}}`),
		[]byte(`{"layers":[{"mediaType":"`+simpleSigningType+`","annotations":{"`+signatureAnnotation+`":"AA=="}}]}`))
	f.Fuzz(func(t *testing.T, data, manifest []byte) {
		r := newRepo("r.example/app")
		image := r.put([]byte("image"))
		tag := strings.Replace(image.Digest.String(), ":", "-", 1)
		l := r.put(data)
		l.MediaType = bundleType
		m := r.putJSON(t, ocispec.Manifest{ArtifactType: bundleType, Layers: []ocispec.Descriptor{l}})
		r.tags[tag] = r.putJSON(t, ocispec.Index{Manifests: []ocispec.Descriptor{m}}).Digest
		r.tags[tag+".sig"] = r.put(manifest).Digest
		if err := p.Check(t.Context(), r, image); !errors.Is(err, ErrUntrusted) {
			t.Errorf("%v: no one can have signed this", err)
		}
	})
}
