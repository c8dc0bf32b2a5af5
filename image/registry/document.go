package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Docker's media types of manifests, next to OCI's in ocispec.
const (
	DockerManifest   = "application/vnd.docker.distribution.manifest.v2+json"
	DockerIndex      = "application/vnd.docker.distribution.manifest.list.v2+json"
	DockerSchema1    = "application/vnd.docker.distribution.manifest.v1+json"
	DockerSchema1Sig = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// acceptManifests is the Accept header of manifest requests.
var acceptManifests = []string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest, DockerIndex, DockerManifest,
}

// Resolve fetches the document that a tag or digest names. MediaType is what the registry
// says, "" if that makes no sense; the digest is of the bytes, and, if the registry or the
// caller names one, that. Kinds: all.
func (r *Repository) Resolve(ctx context.Context, tagOrDigest string) (ocispec.Descriptor, []byte, error) {
	var d ocispec.Descriptor
	wanted, need := digest.Digest(""), Resolve
	if strings.Contains(tagOrDigest, ":") {
		wanted, need = digest.Digest(tagOrDigest), Pull
	}
	data, err := r.small(ctx, need, "manifests/"+tagOrDigest, MaxManifest, func(resp *http.Response, data []byte) error {
		mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
		if err != nil {
			mediaType = ""
		}
		d = ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		said := digest.Digest(resp.Header.Get("Docker-Content-Digest"))
		switch {
		case mediaType == DockerSchema1 || mediaType == DockerSchema1Sig:
			return nil // its digest is not of these bytes
		case wanted != "":
			return Verify(data, wanted)
		case !json.Valid(data): // a portal's page, say: another host may have the document
			return fmt.Errorf("%w: malformed manifest: %s of %s by %s is no JSON", ErrInvalid, tagOrDigest, r, resp.Request.URL.Host)
		case said.Validate() == nil && said.Algorithm() == digest.SHA256:
			return Verify(data, said)
		}
		return nil
	})
	return d, data, err
}

// Fetch reads a nested manifest, a config or another small blob that has the
// descriptor's digest. Kinds: all.
func (r *Repository) Fetch(ctx context.Context, d ocispec.Descriptor) ([]byte, error) {
	if d.Size > MaxDocument {
		return nil, fmt.Errorf("%w: %s of %s has %d bytes, more than the %d of a document", ErrInvalid, d.Digest, r, d.Size, MaxDocument)
	}
	what := "blobs/"
	if slices.Contains(acceptManifests, d.MediaType) {
		what = "manifests/"
	}
	return r.small(ctx, Pull, what+d.Digest.String(), d.Size, func(_ *http.Response, data []byte) error {
		return Verify(data, d.Digest)
	})
}

// Verify checks bytes against their digest. Kind: ErrInvalid.
func Verify(data []byte, want digest.Digest) error {
	if got := digest.FromBytes(data); got != want {
		return fmt.Errorf("%w: content has digest %s, expected %s", ErrInvalid, got, want)
	}
	return nil
}

// small fetches a document of at most limit bytes from the first endpoint that has it
// and whose answer passes check.
func (r *Repository) small(ctx context.Context, need Capability, what string, limit int64,
	check func(*http.Response, []byte) error,
) ([]byte, error) {
	endpoints, err := r.able(need)
	if err != nil {
		return nil, err
	}
	ctx, p := r.patience(ctx)
	defer p.stop()
	var mirrorErrs []error
	for i, e := range endpoints {
		tries := 1 // of a mirror: the next host is the better second try
		if i == len(endpoints)-1 {
			tries = smallTries
		}
		data, err := r.smallFrom(ctx, e, what, tries, limit, check)
		if err == nil {
			return data, nil
		}
		if ctx.Err() != nil {
			return nil, p.why(ctx, ctx.Err())
		}
		mirrorErrs = append(mirrorErrs, err)
	}
	last := len(mirrorErrs) - 1
	return nil, withMirrors(mirrorErrs[last], mirrorErrs[:last])
}

func (r *Repository) smallFrom(ctx context.Context, e *endpoint, what string, tries int, limit int64,
	check func(*http.Response, []byte) error,
) (data []byte, err error) {
	header := http.Header{}
	if strings.HasPrefix(what, "manifests/") {
		header["Accept"] = acceptManifests
	}
	err = retry(ctx, tries, func() error {
		resp, err := r.get(ctx, e, what, header, 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		data, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return r.transportError(ctx, e, err)
		}
		if int64(len(data)) > limit {
			return fmt.Errorf("%w: %s of %s is larger than %d bytes", ErrInvalid, what, r, limit)
		}
		return check(resp, data)
	})
	return data, err
}
