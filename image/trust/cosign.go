package trust

import (
	"bytes"
	"context"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/coracle-project/coracle/image/registry"
	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Names that cosign's specifications fix: SIGNATURE_SPEC.md for signatures under a tag,
// BUNDLE_SPEC.md for those that refer to the image.
const (
	simpleSigningType   = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
	bundleType          = "application/vnd.dev.sigstore.bundle.v0.3+json"
	statementType       = "application/vnd.in-toto+json"
	imageSignature      = "https://sigstore.dev/cosign/sign/v1"
)

// cosign wants a signature by one of some keys.
type cosign struct {
	keys []signature.Verifier
	// signedAs is the repository that signatures name; empty: the one pulled from.
	signedAs      string
	anyRepository bool // that they name, or none
}

func newCosign(files []string, signedAs, dir string) (*cosign, error) {
	if len(files) == 0 {
		return nil, errors.New("keys: names no public key")
	}
	c := &cosign{}
	for _, file := range files {
		pem, err := readKeyFile(dir, file)
		if err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		key, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
		if err != nil {
			return nil, fmt.Errorf("keys: %s holds no public key in PEM: %w", file, err)
		}
		v, err := signature.LoadVerifier(key, crypto.SHA256)
		if err != nil {
			return nil, fmt.Errorf("keys: %s: %w", file, err)
		}
		c.keys = append(c.keys, v)
	}
	if signedAs == "" {
		return c, nil
	}
	name, err := repository(signedAs)
	if err != nil || name != signedAs {
		return nil, fmt.Errorf("signed_as: %q is not the full name of a repository", signedAs)
	}
	c.signedAs = signedAs
	return c, nil
}

// check looks for bundles, as cosign 3 attaches them, and for signatures under a tag, as
// before and as skopeo and podman do.
func (c *cosign) check(ctx context.Context, repo Repository, d ocispec.Descriptor) error {
	var t tries
	for _, look := range []func(context.Context, Repository, digest.Digest, *tries) (bool, error){c.tagged, c.bundles} {
		ok, err := look(ctx, repo, d.Digest, &t)
		if ok || err != nil {
			return err
		}
	}
	return t.verdict("cosign")
}

// tagged looks at the signatures under the tag sha256-HEX.sig.
func (c *cosign) tagged(ctx context.Context, repo Repository, d digest.Digest, t *tries) (ok bool, err error) {
	_, data, err := repo.Resolve(ctx, d.Algorithm().String()+"-"+d.Encoded()+".sig")
	if errors.Is(err, registry.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, t.failed(err)
	}
	m, err := parseManifest(data)
	if err != nil {
		return false, t.failed(err)
	}
	for i, l := range m.Layers {
		if i == maxSignatures {
			break
		}
		if l.MediaType != simpleSigningType {
			continue
		}
		err := c.simple(ctx, repo, d, l)
		if err == nil {
			return true, nil
		}
		if err := t.failed(err); err != nil {
			return false, err
		}
	}
	return false, nil
}

// simple checks one signature whose payload is a blob.
func (c *cosign) simple(ctx context.Context, repo Repository, d digest.Digest, l ocispec.Descriptor) error {
	sig, err := base64.StdEncoding.DecodeString(l.Annotations[signatureAnnotation])
	if err != nil || len(sig) == 0 {
		return reason("it is not base64")
	}
	blob, err := small(ctx, repo, l)
	if err != nil {
		return err
	}
	if !c.verifies(sig, blob) {
		return errOtherKey
	}
	// Only now is it known whose words these are.
	var said payload.SimpleContainerImage
	if err := boundedjson.Unmarshal(blob, &said); err != nil {
		return reason("its payload is no JSON")
	}
	if said.Critical.Type != payload.CosignSignatureType {
		return reason("it signs a %q, not an image", said.Critical.Type)
	}
	if said.Critical.Image.DockerManifestDigest != d.String() {
		return reason("it is of %s", said.Critical.Image.DockerManifestDigest)
	}
	return c.of(repo, said.Critical.Identity.DockerReference)
}

// of checks which repository a signature names: the signature of another repository with the same
// key could be copied here. Cosign's own bundles name none.
func (c *cosign) of(repo Repository, claimed string) error {
	if c.anyRepository {
		return nil
	}
	if claimed == "" {
		return reason("it names no repository, so that it would count for every image by its key: set any_repository = true if that is meant")
	}
	want := c.signedAs
	if want == "" {
		want = repo.String()
	}
	got, err := repository(claimed)
	if err != nil || got != want {
		return reason("it is for %q: if the image was copied from there, say so with signed_as", claimed)
	}
	return nil
}

// bundle is a sigstore bundle as far as a signature by key is concerned.
type bundle struct {
	DSSE *struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
}

// statement is an in-toto statement.
type statement struct {
	PredicateType string `json:"predicateType"`
	Subject       []struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
}

// bundles looks at the bundles that refer to the image.
func (c *cosign) bundles(ctx context.Context, repo Repository, d digest.Digest, t *tries) (ok bool, err error) {
	all, err := repo.Referrers(ctx, d, bundleType)
	if err != nil {
		return false, t.failed(err)
	}
	for i, r := range all {
		if i == maxSignatures {
			break
		}
		data, _, err := bundled(ctx, repo, r, bundleType)
		if err == nil {
			err = c.bundle(data, repo, d)
		}
		if err == nil {
			return true, nil
		}
		if err := t.failed(err); err != nil {
			return false, err
		}
	}
	return false, nil
}

// bundle checks one bundle. Attestations (of a build, of a scan) are bundles too: that
// one was signed says nothing about whether the image may run.
func (c *cosign) bundle(data []byte, repo Repository, d digest.Digest) error {
	var b bundle
	if err := boundedjson.Unmarshal(data, &b); err != nil {
		return reason("its bundle is no JSON")
	}
	if b.DSSE == nil || b.DSSE.PayloadType != statementType {
		return reason("its bundle holds no statement")
	}
	// The format wants exactly one. A registry could list tens of thousands otherwise, for each
	// of which the whole payload is hashed.
	if n := len(b.DSSE.Signatures); n != 1 {
		return reason("its bundle has %d signatures, not one", n)
	}
	if !c.verifies(b.DSSE.Signatures[0].Sig, dsse.PAE(b.DSSE.PayloadType, b.DSSE.Payload)) {
		return errOtherKey
	}
	var said statement
	if err := boundedjson.Unmarshal(b.DSSE.Payload, &said); err != nil {
		return reason("its statement is no JSON")
	}
	if said.PredicateType != imageSignature {
		return reason("it states %q, not that the image is signed", said.PredicateType)
	}
	for _, s := range said.Subject {
		if s.Digest[d.Algorithm().String()] == d.Encoded() {
			return c.of(repo, s.Name)
		}
	}
	return reason("it is of another image")
}

var errOtherKey = reason("it is not by any of the keys")

// verifies says whether one of the keys has made a signature.
func (c *cosign) verifies(sig, data []byte) bool {
	for _, k := range c.keys {
		if k.VerifySignature(bytes.NewReader(sig), bytes.NewReader(data)) == nil {
			return true
		}
	}
	return false
}

// parseManifest reads a manifest of signatures.
func parseManifest(data []byte) (*ocispec.Manifest, error) {
	var m ocispec.Manifest
	if err := boundedjson.Unmarshal(data, &m); err != nil {
		return nil, reason("its manifest is no JSON: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return &m, nil
}
