package trust

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/notaryproject/notation-go"
	notaryregistry "github.com/notaryproject/notation-go/registry"
	"github.com/notaryproject/notation-go/verifier"
	"github.com/notaryproject/notation-go/verifier/trustpolicy"
	"github.com/notaryproject/notation-go/verifier/truststore"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// notary wants a signature by a signer whom some authorities have certified.
type notary struct{ verifier notation.Verifier }

// store is the one trust store, with the policy's certificates.
type store []*x509.Certificate

// storeName is what our trust policy calls it.
const storeName = "policy"

// GetCertificates implements truststore.X509TrustStore.
func (s store) GetCertificates(_ context.Context, t truststore.Type, _ string) ([]*x509.Certificate, error) {
	if t != truststore.TypeCA {
		return nil, fmt.Errorf("no certificates of type %s", t)
	}
	return s, nil
}

func newNotation(files, identities []string, dir string) (*notary, error) {
	if len(files) == 0 {
		return nil, errors.New("certificates: names no certificate")
	}
	var s store
	for _, file := range files {
		pem, err := readKeyFile(dir, file)
		if err != nil {
			return nil, fmt.Errorf("certificates: %w", err)
		}
		certs, err := cryptoutils.UnmarshalCertificatesFromPEM(pem)
		if err == nil {
			err = truststore.ValidateCertificates(certs)
		}
		if err != nil {
			return nil, fmt.Errorf("certificates: %s: %w", file, err)
		}
		s = append(s, certs...)
	}
	if len(identities) == 0 {
		identities = []string{"*"}
	}
	v, err := verifier.New(&trustpolicy.Document{
		Version: "1.0",
		TrustPolicies: []trustpolicy.TrustPolicy{{
			Name: storeName, RegistryScopes: []string{"*"},
			SignatureVerification: trustpolicy.SignatureVerification{VerificationLevel: trustpolicy.LevelStrict.Name},
			TrustStores:           []string{string(truststore.TypeCA) + ":" + storeName},
			TrustedIdentities:     identities,
		}},
	}, s, nil)
	if err != nil {
		return nil, fmt.Errorf("identities: %w", err)
	}
	return &notary{v}, nil
}

func (n *notary) check(ctx context.Context, repo Repository, d ocispec.Descriptor) error {
	var t tries
	all, err := repo.Referrers(ctx, d.Digest, notaryregistry.ArtifactTypeNotation)
	if err != nil {
		if err := t.failed(err); err != nil {
			return err
		}
	}
	for i, r := range all {
		if i == maxSignatures {
			break
		}
		err := n.signature(ctx, repo, d, r)
		if err == nil {
			return nil
		}
		if err := t.failed(err); err != nil {
			return err
		}
	}
	return t.verdict("notation")
}

// signature checks one signature, which the manifest r wraps.
func (n *notary) signature(ctx context.Context, repo Repository, d, r ocispec.Descriptor) error {
	envelope, l, err := bundled(ctx, repo, r, notaryregistry.ArtifactTypeNotation)
	if err != nil {
		return err
	}
	_, err = n.verifier.Verify(ctx, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, envelope,
		notation.VerifierVerifyOptions{
			ArtifactReference:  repo.String() + "@" + d.Digest.String(),
			SignatureMediaType: l.MediaType,
		})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return reason("%v", err)
}
