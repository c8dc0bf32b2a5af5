package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/boundedjson"
)

// Referrers lists the manifests that refer to a digest: those of a type if the registry
// can tell (distribution spec 1.1, "Listing Referrers"), or all of those that the tag of
// the digest lists where it cannot. Nothing is an empty list. The descriptors are the
// registry's word: check what Fetch returns. Kinds: ErrUnauthorized, ErrUnavailable, ErrInvalid.
func (r *Repository) Referrers(ctx context.Context, d digest.Digest, artifactType string) ([]ocispec.Descriptor, error) {
	data, err := r.small(ctx, Referrers, "referrers/"+d.String()+"?"+url.Values{"artifactType": {artifactType}}.Encode(), MaxManifest,
		func(*http.Response, []byte) error { return nil })
	if errors.Is(err, ErrNotFound) {
		_, data, err = r.Resolve(ctx, d.Algorithm().String()+"-"+d.Encoded())
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := boundedjson.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: malformed list of what refers to %s@%s: %w", ErrInvalid, r, d, err)
	}
	return index.Manifests, nil
}
