package registry

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/boundedjson"
)

// maxPages is how many pages of a list of referrers are read.
const maxPages = 16

// Referrers lists the manifests of a type that refer to a digest (distribution spec 1.1, "Listing
// Referrers"), by the registry's API or, where it has none, by the tag of the digest. One whose
// type the list does not say is in the result too. No referrers is an empty list. The descriptors
// are the registry's word: check what Fetch returns. Kinds: ErrUnauthorized, ErrUnavailable,
// ErrInvalid.
func (r *Repository) Referrers(ctx context.Context, d digest.Digest, artifactType string) ([]ocispec.Descriptor, error) {
	all, err := r.referrerPages(ctx, d, artifactType)
	if errors.Is(err, ErrNotFound) {
		var data []byte
		_, data, err = r.Resolve(ctx, d.Algorithm().String()+"-"+d.Encoded())
		if errors.Is(err, ErrNotFound) {
			return nil, nil
		}
		if err == nil {
			all, err = r.referrersIn(data, d)
		}
	}
	// Not every registry can filter.
	return slices.DeleteFunc(all, func(d ocispec.Descriptor) bool {
		return d.ArtifactType != "" && d.ArtifactType != artifactType
	}), err
}

// referrerPages asks the API. ErrNotFound if the registry does not have it.
func (r *Repository) referrerPages(ctx context.Context, d digest.Digest, artifactType string) (all []ocispec.Descriptor, err error) {
	what, query := "referrers/"+d.String(), url.Values{"artifactType": {artifactType}}
	for page := 0; query != nil; page++ {
		if page == maxPages {
			return nil, fmt.Errorf("%w: list of what refers to %s@%s has more than %d pages", ErrInvalid, r, d, maxPages)
		}
		data, err := r.small(ctx, Referrers, what+"?"+query.Encode(), MaxManifest, func(resp *http.Response, _ []byte) error {
			// Registries without the API may answer with a page for people.
			t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
			if t != ocispec.MediaTypeImageIndex {
				return fmt.Errorf("%w: list of what refers to %s@%s: the answer has the type %q", ErrNotFound, r, d, t)
			}
			query = nextPage(resp.Header, what)
			return nil
		})
		if err != nil {
			return nil, err
		}
		some, err := r.referrersIn(data, d)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// nextPage returns the query of the next page of a list; nil if there is none. Only that is taken
// from the registry's link (RFC 8288), so that it cannot lead elsewhere.
func nextPage(h http.Header, what string) url.Values {
	for _, links := range h.Values("Link") {
		for link := range strings.SplitSeq(links, ",") {
			target, params, _ := strings.Cut(strings.TrimSpace(link), ">")
			_, p, err := mime.ParseMediaType("link" + params)
			if err != nil || p["rel"] != "next" || !strings.HasPrefix(target, "<") {
				continue
			}
			u, err := url.Parse(target[1:])
			if err == nil && strings.HasSuffix(u.Path, "/"+what) {
				q := u.Query()
				q.Del("ns") // which is ours to tell
				return q
			}
		}
	}
	return nil
}

func (r *Repository) referrersIn(data []byte, d digest.Digest) ([]ocispec.Descriptor, error) {
	var index ocispec.Index
	if err := boundedjson.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("%w: malformed list of what refers to %s@%s: %w", ErrInvalid, r, d, err)
	}
	return index.Manifests, nil
}
